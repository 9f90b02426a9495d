// Which sums make up each pass.
//
// The convolution f(x, y, w) of features x, attributes y and weights w is linear in each of them.
// So every pass is a sum of f or of its cotangents with some inputs exchanged, one term after the
// other over the same few edges, whose weights then come from the cache.

#include "passes.h"

#include <algorithm>

#include "edge_walk.h"

namespace mace_stream {
namespace cpu {
namespace {

Shape shape_of(const ms_conv_plan& plan, const ms_graph& graph) {
  const ms_conv_dims& dims = plan.dims;
  return {plan.blocks.data(), int32_t(plan.blocks.size()),
          dims.dim_in,        dims.dim_edge,
          dims.dim_out,       dims.n_paths,
          graph.channels};
}

template <typename T>
void set_zero(T* first, int64_t size) {
  std::fill(first, first + size, T(0));
}

}  // namespace

template <typename T>
void forward(const ms_conv_plan& plan, const ms_graph& graph, const Inputs<T>& inputs, T* message) {
  const Kernels<T>& kernels = best_kernels<T>();
  const Shape shape = shape_of(plan, graph);
  const int64_t row_size = shape.dim_out * shape.channels;
  walk_receivers(
      graph, [&](int64_t row) { set_zero(message + row * row_size, row_size); },
      [&](const EdgeBlock& edges) {
        kernels.sum_messages(shape, inputs, edges, message + edges.row * row_size);
      });
}

template <typename T>
void backward(const ms_conv_plan& plan, const ms_graph& graph, const Inputs<T>& inputs,
              const T* message_bar, const Cotangents<T>& bars) {
  const Kernels<T>& kernels = best_kernels<T>();
  const Shape shape = shape_of(plan, graph);
  const int64_t row_size = shape.dim_out * shape.channels;

  // Receiver-owned: what belongs to an edge.

  walk_receivers(
      graph, [](int64_t) {},
      [&](const EdgeBlock& edges) {
        for (int k = 0; k < edges.count; ++k)
          set_zero(bars.edge_attrs + edges.edge[k] * shape.dim_edge, shape.dim_edge);
        kernels.edge_cotangents(shape, inputs, message_bar + edges.row * row_size, edges,
                                {bars.edge_attrs, bars.path_weights, false});
      });
  if (!bars.node_feats) return;

  // Sender-owned: what a node gets from all edges that it sends along.

  const int64_t node_size = shape.dim_in * shape.channels;
  walk_senders(
      graph, [&](int64_t row) { set_zero(bars.node_feats + row * node_size, node_size); },
      [&](const EdgeBlock& edges) {
        kernels.sum_node_cotangents(shape, inputs, message_bar, edges,
                                    bars.node_feats + edges.row * node_size);
      });
}

namespace {

/// With a_x, a_y, a_w the cotangents of node_feats_bar, edge_attrs_bar and path_weights_bar and g
/// the message cotangent, double_backward differentiates
///
///   S = <g, f(a_x, y, w) + f(x, a_y, w) + f(x, y, a_w)>.
///
/// A term whose cotangent is null is zero and left out.
template <typename T>
struct DoubleBackward {
  const Kernels<T>& kernels;
  const Shape shape;
  const Inputs<T> moved_feats, moved_attrs, moved_weights; /* the three f of S */
  const T* message_bar;
  const Cotangents<T>& grads;
  T* message_bar_grad;

  DoubleBackward(const ms_conv_plan& plan, const ms_graph& graph, const Inputs<T>& inputs,
                 const T* bar, const Inputs<T>& cts, const Cotangents<T>& gradients, T* bar_grad)
      : kernels(best_kernels<T>()),
        shape(shape_of(plan, graph)),
        moved_feats{cts.node_feats, inputs.edge_attrs, inputs.path_weights},
        moved_attrs{inputs.node_feats, cts.edge_attrs, inputs.path_weights},
        moved_weights{inputs.node_feats, inputs.edge_attrs, cts.path_weights},
        message_bar(bar),
        grads(gradients),
        message_bar_grad(bar_grad) {}

  /// dS/dg, for a receiver's edges.
  void sum_messages(const EdgeBlock& edges) const {
    T* row = message_bar_grad + edges.row * shape.dim_out * shape.channels;
    if (moved_feats.node_feats) kernels.sum_messages(shape, moved_feats, edges, row);
    if (moved_attrs.edge_attrs) kernels.sum_messages(shape, moved_attrs, edges, row);
    if (moved_weights.path_weights) kernels.sum_messages(shape, moved_weights, edges, row);
  }

  /// dS/dy and dS/dw, for a receiver's edges. The second f does not depend on y, nor the third on
  /// w.
  void edge_gradients(const EdgeBlock& edges) const {
    const int64_t weights_size = shape.n_paths * shape.channels;
    for (int k = 0; k < edges.count; ++k) {
      set_zero(grads.edge_attrs + edges.edge[k] * shape.dim_edge, shape.dim_edge);
      set_zero(grads.path_weights + edges.edge[k] * weights_size, weights_size);
    }
    const T* bar = message_bar + edges.row * shape.dim_out * shape.channels;
    if (moved_feats.node_feats)
      kernels.edge_cotangents(shape, moved_feats, bar, edges,
                              {grads.edge_attrs, grads.path_weights, true});
    if (moved_attrs.edge_attrs)
      kernels.edge_cotangents(shape, moved_attrs, bar, edges, {nullptr, grads.path_weights, true});
    if (moved_weights.path_weights)
      kernels.edge_cotangents(shape, moved_weights, bar, edges, {grads.edge_attrs, nullptr, true});
  }

  /// dS/dx, for a sender's edges. The first f does not depend on x.
  void sum_node_gradients(const EdgeBlock& edges) const {
    T* row = grads.node_feats + edges.row * shape.dim_in * shape.channels;
    if (moved_attrs.edge_attrs)
      kernels.sum_node_cotangents(shape, moved_attrs, message_bar, edges, row);
    if (moved_weights.path_weights)
      kernels.sum_node_cotangents(shape, moved_weights, message_bar, edges, row);
  }
};

}  // namespace

template <typename T>
void double_backward(const ms_conv_plan& plan, const ms_graph& graph, const Inputs<T>& inputs,
                     const T* message_bar, const Inputs<T>& cts, const Cotangents<T>& grads,
                     T* message_bar_grad) {
  const DoubleBackward<T> pass(plan, graph, inputs, message_bar, cts, grads, message_bar_grad);
  const int64_t row_size = plan.dims.dim_out * graph.channels;
  walk_receivers(
      graph, [&](int64_t row) { set_zero(message_bar_grad + row * row_size, row_size); },
      [&](const EdgeBlock& edges) {
        pass.sum_messages(edges);
        pass.edge_gradients(edges);
      });
  if (!grads.node_feats) return;
  const int64_t node_size = plan.dims.dim_in * graph.channels;
  walk_senders(
      graph, [&](int64_t row) { set_zero(grads.node_feats + row * node_size, node_size); },
      [&](const EdgeBlock& edges) { pass.sum_node_gradients(edges); });
}

#define INSTANTIATE(T)                                                                            \
  template void forward(const ms_conv_plan&, const ms_graph&, const Inputs<T>&, T*);              \
  template void backward(const ms_conv_plan&, const ms_graph&, const Inputs<T>&, const T*,        \
                         const Cotangents<T>&);                                                   \
  template void double_backward(const ms_conv_plan&, const ms_graph&, const Inputs<T>&, const T*, \
                                const Inputs<T>&, const Cotangents<T>&, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace cpu
}  // namespace mace_stream
