// What the CPU kernels offer to the passes, for every instruction set they are compiled for.
//
// A kernel does a few edges of one receiver (or sender), all paths and all channels. It shares the
// dense coupling matrix of a path and edge, M[in, out] = sum over terms of value * edge_attrs,
// among the channels, so that what is left per channel are small matrix products.

#pragma once

#include <cstdint>

#include "plan.h"

namespace mace_stream {

/// Edges that a kernel takes at a time: their matrices of one path stay in the first-level cache.
constexpr int EDGES = 16;

/// Some edges of one row.
struct EdgeBlock {
  int count = 0;
  int64_t row = 0;
  int64_t edge[EDGES];
  int64_t node[EDGES]; /* the edge's other end */
};

/// Tables and sizes, without any standard container: see block_kernels.h.
struct Shape {
  const PathBlock* blocks;
  int32_t n_blocks;
  int32_t dim_in, dim_edge, dim_out, n_paths;
  int64_t channels;
};

/// The three inputs of the convolution, or cotangents in place of some of them.
template <typename T>
struct Inputs {
  const T* node_feats;   /* [n_nodes, dim_in, channels] */
  const T* edge_attrs;   /* [n_edges, dim_edge] */
  const T* path_weights; /* [n_edges, n_paths, channels] */
};

/// Where the cotangents of edge-sized inputs go. Null where they are not wanted.
template <typename T>
struct EdgeCotangents {
  T* edge_attrs;    /* [n_edges, dim_edge], added to */
  T* path_weights;  /* [n_edges, n_paths, channels] */
  bool add_weights; /* else overwritten */
};

template <typename T>
struct Kernels {
  /// message_row [dim_out, channels] += what these edges of one receiver send to it.
  void (*sum_messages)(const Shape&, const Inputs<T>&, const EdgeBlock&, T* message_row);

  /// node_bar_row [dim_in, channels] += cotangent of one sender's features from these edges of it,
  /// given `message_bar` [n_receivers, dim_out, channels]. Reads no node features.
  void (*sum_node_cotangents)(const Shape&, const Inputs<T>&, const T* message_bar,
                              const EdgeBlock&, T* node_bar_row);

  /// Cotangents of edge attributes and path weights of these edges of one receiver, given its
  /// `message_bar_row` [dim_out, channels].
  void (*edge_cotangents)(const Shape&, const Inputs<T>&, const T* message_bar_row,
                          const EdgeBlock&, const EdgeCotangents<T>&);
};

/// The fastest kernels that this processor runs.
template <typename T>
const Kernels<T>& best_kernels();

}  // namespace mace_stream
