// Convolution of a later layer, with weights read from a radial table, and its derivatives.
//
// A block owns one receiver, a warp of it a tile of channels; 32 edges at a time are staged for all
// warps. Written per model: `CHANNELS`, `N_PATHS`, `WARPS`, `N_BLOCKS` and groups of paths as in
// conv_common.cuh, whose output rows lie in blocks [component, receiver, path, channel]:
//
//   static constexpr int OUT_BLOCK[], OUT_COMPONENT[], OUT_PATH[], OUT_PATHS[];   per output row

#pragma once

#include "edge_batch.cuh"

/// Arguments of both passes; layouts in docs/inference.md.
struct ConvCall {
  Edges edges;
  int64_t first_receiver, n_receivers, n_senders;
  const Real* up;       // [DIM_IN, n_senders, CHANNELS]
  const Real* table;    // [rows, N_PATHS, N_COEF, CHANNELS]
  const Real* density;  // [rows, N_COEF]
  Real* out[N_BLOCKS];  // messages, or their cotangents
  Real* norm;           // [n_nodes]
  const Real* dot;      // [n_nodes]
  Real* up_bar;         // [DIM_IN, n_senders, CHANNELS], null where nobody wants it
};

/// The thread's channels.
template <int WIDTH>
struct Channels {
  int first;
  bool active;
  __device__ __forceinline__ Channels() {
    first = (blockIdx.y * blockDim.x + threadIdx.x) * WIDTH;
    active = first < CHANNELS;
    if (!active) first = 0;
  }
};

/// Where an output row of this block's receiver starts. What rows share is written apart from what
/// tells them apart, which saves registers.
template <typename G, int M>
__device__ __forceinline__ Real* out_row(const ConvCall& call) {
  constexpr int block = G::OUT_BLOCK[M], paths = G::OUT_PATHS[M];
  const int64_t component = call.n_receivers * (paths * CHANNELS);
  Real* first = call.out[block] + blockIdx.x * int64_t(paths * CHANNELS);
  return first + G::OUT_COMPONENT[M] * component + G::OUT_PATH[M] * CHANNELS;
}

template <typename G, int WIDTH>
__device__ __forceinline__ void load_feats(const ConvCall& call, int32_t sender, int channel,
                                           bool active, Pack<WIDTH> (&feat)[G::N_IN]) {
  unrolled<G::N_IN>([&](auto m) {
    constexpr int row = G::ROWS_IN[m.value];
    feat[m.value] =
        load<WIDTH>(call.up + (row * call.n_senders + sender) * CHANNELS + channel, active);
  });
}

/// Messages. Sums stay in registers over all edges of the receiver and are written once.
template <typename G, int WIDTH, bool DENSITY>
__global__ void __launch_bounds__(WARPS* WARP) radial_conv(ConvCall call) {
  __shared__ StagedEdge batch[WARP];
  __shared__ Real shared_norm;
  const Channels<WIDTH> own;
  const int64_t node = call.first_receiver + blockIdx.x;
  const int64_t first = call.edges.first[node];
  const int n_edges = call.edges.count[node];
  Pack<WIDTH> sum[G::N_OUT];
  set_zero(sum);
  Real rho = 0;

  for (int base = 0; base < n_edges; base += WARP) {
    const int n_batch = min(WARP, n_edges - base);
    __syncthreads();
    if (threadIdx.x < n_batch) {
      stage(call.edges, first + base + threadIdx.x, batch[threadIdx.x]);
      if constexpr (DENSITY) {
        const StagedEdge& edge = batch[threadIdx.x];
        rho += polynomial<1>(call.density + int64_t(edge.row) * N_COEF, 1, edge.t, true).v[0];
      }
    }
    __syncthreads();
    for (int k = 0; k < n_batch; ++k) {
      const StagedEdge& edge = batch[k];
      const Real* coef = call.table + int64_t(edge.row) * (N_PATHS * N_COEF * CHANNELS) + own.first;
      Pack<WIDTH> feat[G::N_IN];
      load_feats<G>(call, edge.sender, own.first, own.active, feat);
      unrolled<G::N_PATHS>([&](auto p) {
        constexpr int path = G::PATHS[p.value], first_pair = G::PATH_PAIRS[p.value];
        constexpr int n_pairs = G::PATH_PAIRS[p.value + 1] - first_pair;
        const auto weight =
            polynomial<WIDTH>(coef + path * (N_COEF * CHANNELS), CHANNELS, edge.t, own.active);
        unrolled<n_pairs>([&](auto q) {
          constexpr Pair pair = G::PAIRS[first_pair + q.value];
          const auto weighted = product(weight, feat[pair.in]);
          unrolled<pair.n_terms>([&](auto j) {
            constexpr Term term = G::TERMS[pair.first_term + j.value];
            add_product(sum[term.out], weighted, Real(term.value) * edge.y[term.edge]);
          });
        });
      });
    }
  }

  // Normalise by the density, then write.

  Real norm = 1;
  if constexpr (DENSITY) {
    if (threadIdx.x < WARP) {
      rho = sum_of_warp(rho);
      if (threadIdx.x == 0) shared_norm = 1 / (1 + rho);
    }
    __syncthreads();
    norm = shared_norm;
    if (G::FIRST && threadIdx.x == 0 && blockIdx.y == 0) call.norm[node] = norm;
  }
  unrolled<G::N_OUT>([&](auto m) {
    Pack<WIDTH> row = sum[m.value];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) row.v[i] *= norm;
    store<WIDTH>(out_row<G, m.value>(call) + own.first, row, own.active);
  });
}

/// Gradients of the edge vectors and, added atomically, of the senders' features. `call.out` holds
/// the messages' cotangents, which stay in registers.
template <typename G, int WIDTH, bool DENSITY>
__global__ void __launch_bounds__(WARPS* WARP) radial_conv_backward(ConvCall call) {
  __shared__ StagedEdge batch[WARP];
  __shared__ Real bars[WARPS][WARP][PADDED_EDGE + 1];
  const Channels<WIDTH> own;
  const int64_t node = call.first_receiver + blockIdx.x;
  const int64_t first = call.edges.first[node];
  const int n_edges = call.edges.count[node];
  if (n_edges == 0) return;
  const Real norm = DENSITY ? call.norm[node] : Real(1);
  const Real rho_bar = DENSITY ? -norm * call.dot[node] : Real(0);
  Pack<WIDTH> bar[G::N_OUT];
  unrolled<G::N_OUT>([&](auto m) {
    bar[m.value] = load<WIDTH>(out_row<G, m.value>(call) + own.first, own.active);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) bar[m.value].v[i] *= norm;
  });

  for (int base = 0; base < n_edges; base += WARP) {
    const int n_batch = min(WARP, n_edges - base);
    __syncthreads();
    if (threadIdx.x < n_batch) stage(call.edges, first + base + threadIdx.x, batch[threadIdx.x]);
    __syncthreads();
    for (int k = 0; k < n_batch; ++k) {
      const StagedEdge& edge = batch[k];
      const Real* coef = call.table + int64_t(edge.row) * (N_PATHS * N_COEF * CHANNELS) + own.first;
      Pack<WIDTH> feat[G::N_IN], feat_bar[G::N_IN];
      load_feats<G>(call, edge.sender, own.first, own.active, feat);
      set_zero(feat_bar);
      Real attrs_bar[DIM_EDGE] = {};
      unrolled<G::N_PATHS>([&](auto p) {
        constexpr int path = G::PATHS[p.value], first_pair = G::PATH_PAIRS[p.value];
        constexpr int n_pairs = G::PATH_PAIRS[p.value + 1] - first_pair;
        Pack<WIDTH> weight, slope, weight_bar = zero_pack<WIDTH>();
        polynomial_and_slope<WIDTH>(coef + path * (N_COEF * CHANNELS), CHANNELS, edge.t, own.active,
                                    weight, slope);
        unrolled<n_pairs>([&](auto q) {
          constexpr Pair pair = G::PAIRS[first_pair + q.value];
          const auto weighted = product(weight, feat[pair.in]);
          auto coupled = zero_pack<WIDTH>();
          unrolled<pair.n_terms>([&](auto j) {
            constexpr Term term = G::TERMS[pair.first_term + j.value];
            constexpr Real value = Real(term.value);
            add_product(coupled, bar[term.out], value * edge.y[term.edge]);
            if constexpr (term.edge > 0)
              attrs_bar[term.edge] = fma(value, dot(weighted, bar[term.out]), attrs_bar[term.edge]);
          });
          add_product(weight_bar, coupled, feat[pair.in]);
          add_product(feat_bar[pair.in], coupled, weight);
        });
        attrs_bar[0] += dot(weight_bar, slope);
      });
      if (call.up_bar)
        unrolled<G::N_IN>([&](auto m) {
          constexpr int row = G::ROWS_IN[m.value];
          add_atomically<WIDTH>(
              call.up_bar + (row * call.n_senders + edge.sender) * CHANNELS + own.first,
              feat_bar[m.value], own.active);
        });
      sum_over_lanes(attrs_bar, bars[threadIdx.x / WARP][k]);
    }
    __syncthreads();

    // Add up the tiles of channels, one edge per thread.

    if (threadIdx.x < n_batch) {
      Real total[DIM_EDGE];
#pragma unroll
      for (int m = 0; m < DIM_EDGE; ++m) {
        total[m] = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) total[m] += bars[w][threadIdx.x][m];
      }
      if (DENSITY && G::FIRST && blockIdx.y == 0) {
        const StagedEdge& edge = batch[threadIdx.x];
        Pack<1> value, slope;
        polynomial_and_slope<1>(call.density + int64_t(edge.row) * N_COEF, 1, edge.t, true, value,
                                slope);
        total[0] += rho_bar * slope.v[0];
      }
      add_gradient<(CHANNELS > WARPS * WARP * WIDTH)>(call.edges, first + base + threadIdx.x,
                                                      total);
    }
  }
}
