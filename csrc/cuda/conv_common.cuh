// What the convolution's passes share: a warp's share of the work, rows of a
// node.
//
// The text before this file is written per convolution (mace_stream/kernels/source.py): `Real`,
// `BLOCK` (threads per block), `STAGES` (edges on their way per warp), `DIM_IN`, `DIM_EDGE`,
// `DIM_OUT`, `N_PATHS`, `Pair`, `Term` and one struct per group of paths, a group being what one
// kernel can hold in registers:
//
//   struct Group0 {
//     static constexpr bool FIRST;                          the first group to write shared outputs
//     static constexpr int N_IN, N_OUT, N_PATHS, N_PAIRS;
//     static constexpr int ROWS_IN[], ROWS_OUT[], PATHS[];  where the group's rows and paths lie
//     static constexpr Pair PAIRS[];                        products weight[path] * feature[in]
//     static constexpr Term TERMS[];                        couplings, those of a pair together
//   };

#pragma once

#include "packs.cuh"

constexpr int EDGES_PER_CHUNK = 32;

/// The graph of one launch. A row is a receiver, a sender, or a chunk of edges in any order.
struct Graph {
  int64_t n_rows, n_edges, channels;
  const int64_t* indptr;    // [n_rows + 1] edges of each row; null for chunks
  const int32_t* sender;    // [n_edges]
  const int32_t* receiver;  // [n_edges]    only for chunks and the sender-owned pass
  const int64_t* edge_of;   // [n_edges]    edges sorted by sender, only for the sender-owned pass
};

/// The three inputs, or their cotangents; a null pointer stands for zeros.
struct EdgeArrays {
  const Real* node_feats;    // [n_nodes, DIM_IN, channels]
  const Real* edge_attrs;    // [n_edges, DIM_EDGE]
  const Real* path_weights;  // [n_edges, N_PATHS, channels]
};

// ---- a warp's share of the work ----

/// The row and the channels that a warp owns. Warps never share data, so any number of rows and
/// channels works; lanes beyond the last channel carry zeros.
struct Share {
  int64_t row;  // -1: nothing to do
  int tile;
  int channel;
  bool active;
  int lane;

  __device__ __forceinline__ Share(const Graph& graph, int width) {
    const int64_t warp = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / WARP;
    const int n_tiles = int((graph.channels + WARP * width - 1) / (WARP * width));
    lane = threadIdx.x % WARP;
    row = warp / n_tiles;
    tile = int(warp % n_tiles);
    channel = (tile * WARP + lane) * width;
    active = channel < graph.channels;
    if (row >= graph.n_rows) row = -1;
  }
};

/// First and last (exclusive) edge of a row.
struct EdgeRange {
  int64_t first, last;

  template <bool ANY_ORDER>
  static __device__ __forceinline__ EdgeRange of(const Graph& graph, int64_t row) {
    if constexpr (!ANY_ORDER) return {graph.indptr[row], graph.indptr[row + 1]};
    const int64_t first = row * EDGES_PER_CHUNK;
    const int64_t last = first + EDGES_PER_CHUNK;
    return {first, last < graph.n_edges ? last : graph.n_edges};
  }
};

// ---- the rows of one node, the paths of one edge ----

template <typename G, int WIDTH>
__device__ __forceinline__ void load_rows_out(const Real* source, int64_t channels, bool active,
                                              Pack<WIDTH> (&rows)[G::N_OUT]) {
  unrolled<G::N_OUT>([&](auto m) {
    constexpr int row = G::ROWS_OUT[m.value];
    rows[m.value] = load<WIDTH>(source + row * channels, active);
  });
}

/// Writes the rows of a receiver, or adds them where other warps do so too.
template <typename G, bool ATOMIC, int WIDTH>
__device__ __forceinline__ void put_rows_out(Real* target, int64_t channels, bool active,
                                             const Pack<WIDTH> (&rows)[G::N_OUT]) {
  unrolled<G::N_OUT>([&](auto m) {
    constexpr int row = G::ROWS_OUT[m.value];
    if constexpr (ATOMIC)
      add_atomically<WIDTH>(target + row * channels, rows[m.value], active);
    else
      store<WIDTH>(target + row * channels, rows[m.value], active);
  });
}

template <typename G, int WIDTH>
__device__ __forceinline__ void add_rows_in(Real* target, int64_t channels, bool active,
                                            const Pack<WIDTH> (&rows)[G::N_IN]) {
  unrolled<G::N_IN>([&](auto m) {
    constexpr int row = G::ROWS_IN[m.value];
    add_atomically<WIDTH>(target + row * channels, rows[m.value], active);
  });
}

template <typename G, int WIDTH>
__device__ __forceinline__ void store_paths(Real* target, int64_t channels, bool active,
                                            const Pack<WIDTH> (&weights)[G::N_PATHS]) {
  unrolled<G::N_PATHS>([&](auto p) {
    constexpr int path = G::PATHS[p.value];
    store_once<WIDTH>(target + path * channels, weights[p.value], active);
  });
}

// ---- sums over the lanes of a warp ----

/// Sums `DIM_EDGE` values over the lanes of a warp and stores them, or adds them to what an earlier
/// group stored. Each step hands half of the values to a partner lane, so few shuffles are needed.
template <bool FIRST>
__device__ __forceinline__ void reduce_and_store(const Real (&values)[DIM_EDGE], Real* target) {
  constexpr int SIZE = next_power_of_two(DIM_EDGE);
  constexpr int LANES_PER_VALUE = WARP / SIZE;
  static_assert(SIZE <= WARP, "spherical harmonics up to l = 4");
  const int lane = threadIdx.x % WARP;
  Real part[SIZE];
#pragma unroll
  for (int m = 0; m < SIZE; ++m) part[m] = m < DIM_EDGE ? values[m] : Real(0);
  halve<SIZE / 2, LANES_PER_VALUE>(part, lane);
#pragma unroll
  for (int mask = LANES_PER_VALUE / 2; mask >= 1; mask /= 2)
    part[0] += __shfl_xor_sync(ALL_LANES, part[0], mask);

  // The upper bits of the lane chose the component.

  const int component = lane / LANES_PER_VALUE;
  if (lane % LANES_PER_VALUE == 0 && component < DIM_EDGE)
    target[component] = FIRST ? part[0] : target[component] + part[0];
}
