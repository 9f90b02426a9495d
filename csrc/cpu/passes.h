// The three passes on the CPU. Arguments are checked before, see face.cpp.

#pragma once

#include "kernels.h"

namespace mace_stream {
namespace cpu {

/// Forward pass, receiver-owned. message [n_receivers, dim_out, channels] is overwritten.
template <typename T>
void forward(const ms_conv_plan& plan, const ms_graph& graph, const Inputs<T>& inputs, T* message);

/// Cotangents of the three inputs, all overwritten. `node_feats_bar` may be null.
template <typename T>
struct Cotangents {
  T* node_feats;   /* [n_nodes, dim_in, channels] */
  T* edge_attrs;   /* [n_edges, dim_edge] */
  T* path_weights; /* [n_edges, n_paths, channels] */
};

template <typename T>
void backward(const ms_conv_plan& plan, const ms_graph& graph, const Inputs<T>& inputs,
              const T* message_bar, const Cotangents<T>& bars);

/// VJP of `backward`. Members of `cts` are null for zero; all gradients are overwritten, of which
/// `grads.node_feats` may be null.
template <typename T>
void double_backward(const ms_conv_plan& plan, const ms_graph& graph, const Inputs<T>& inputs,
                     const T* message_bar, const Inputs<T>& cts, const Cotangents<T>& grads,
                     T* message_bar_grad);

}  // namespace cpu
}  // namespace mace_stream
