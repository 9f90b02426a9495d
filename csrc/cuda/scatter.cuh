// First layer: radial features times spherical harmonics, summed over a receiver's edges by the
// species of the sender, and its derivative. All that follows is linear and has no edges.
//
// A warp owns a receiver and a tile of the radial features. Written per model: `N_HIDDEN`,
// `N_SPECIES`, `N_KNOTS` and `WARPS` (receivers per block).

#pragma once

#include "edge_batch.cuh"

struct ScatterCall {
  Edges edges;
  const Real* table;    // [rows, N_COEF, N_HIDDEN]
  const Real* density;  // [rows, N_COEF]
  Real* out;            // [DIM_EDGE, n_nodes, N_SPECIES, N_HIDDEN], or its cotangent
  Real* norm;           // [n_nodes]
  const Real* dot;      // [n_nodes]
};

/// The receiver and the features of this thread, and its warp's staged edges.
template <int WIDTH>
struct ScatterShare {
  int64_t node, first;
  int n_edges, lane, feature;
  bool active;

  __device__ __forceinline__ ScatterShare(const Edges& edges) {
    lane = threadIdx.x % WARP;
    node = int64_t(blockIdx.x) * WARPS + threadIdx.x / WARP;
    feature = (blockIdx.y * WARP + lane) * WIDTH;
    active = feature < N_HIDDEN;
    if (!active) feature = 0;
    if (node >= edges.n_nodes) {
      node = -1;
      return;
    }
    first = edges.first[node];
    n_edges = edges.count[node];
  }

  __device__ __forceinline__ int64_t row(int64_t n_nodes, int m, int species) const {
    return ((m * n_nodes + node) * N_SPECIES + species) * N_HIDDEN + feature;
  }
};

__device__ __forceinline__ int sender_species(const StagedEdge& edge) {
  return edge.row / N_KNOTS % N_SPECIES;
}

/// Stages the warp's next edges, `k` being the first of them.
__device__ __forceinline__ void stage_warp(const Edges& edges, int64_t first, int k, int n_edges,
                                           StagedEdge* batch) {
  const int lane = threadIdx.x % WARP;
  __syncwarp();
  if (k + lane < n_edges) stage(edges, first + k + lane, batch[lane]);
  __syncwarp();
}

template <int WIDTH, bool DENSITY>
__global__ void __launch_bounds__(WARPS* WARP) scatter(ScatterCall call) {
  __shared__ StagedEdge batches[WARPS][WARP];
  StagedEdge* batch = batches[threadIdx.x / WARP];
  const ScatterShare<WIDTH> own(call.edges);
  if (own.node < 0) return;
  Real norm = 1;
  if constexpr (DENSITY) {
    Real rho = 0;
    for (int k = own.lane; k < own.n_edges; k += WARP) {
      const Real* coef = call.density + int64_t(call.edges.row[own.first + k]) * N_COEF;
      rho += polynomial<1>(coef, 1, call.edges.t[own.first + k], true).v[0];
    }
    norm = 1 / (1 + sum_of_warp(rho));
    if (own.lane == 0 && blockIdx.y == 0) call.norm[own.node] = norm;
  }

  // A row is ordered by the species of the sender, so each species is one run of edges.

  int k = 0;
  stage_warp(call.edges, own.first, 0, own.n_edges, batch);
  for (int species = 0; species < N_SPECIES; ++species) {
    Pack<WIDTH> sum[DIM_EDGE];
    set_zero(sum);
    while (k < own.n_edges && sender_species(batch[k % WARP]) == species) {
      const StagedEdge& edge = batch[k % WARP];
      const Real* coef = call.table + int64_t(edge.row) * (N_COEF * N_HIDDEN) + own.feature;
      const auto value = polynomial<WIDTH>(coef, N_HIDDEN, edge.t, own.active);
#pragma unroll
      for (int m = 0; m < DIM_EDGE; ++m) add_product(sum[m], value, edge.y[m]);
      if (++k % WARP == 0) stage_warp(call.edges, own.first, k, own.n_edges, batch);
    }
#pragma unroll
    for (int m = 0; m < DIM_EDGE; ++m) {
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) sum[m].v[i] *= norm;
      store<WIDTH>(call.out + own.row(call.edges.n_nodes, m, species), sum[m], own.active);
    }
  }
}

/// Gradients of the edge vectors; `call.out` holds the cotangents of the sums.
template <int WIDTH, bool DENSITY>
__global__ void __launch_bounds__(WARPS* WARP) scatter_backward(ScatterCall call) {
  __shared__ StagedEdge batches[WARPS][WARP];
  StagedEdge* batch = batches[threadIdx.x / WARP];
  const ScatterShare<WIDTH> own(call.edges);
  if (own.node < 0) return;
  const Real norm = DENSITY ? call.norm[own.node] : Real(1);
  const Real rho_bar = DENSITY ? -norm * call.dot[own.node] : Real(0);
  Pack<WIDTH> bar[DIM_EDGE];
  int loaded = -1;
  for (int base = 0; base < own.n_edges; base += WARP) {
    const int n_batch = min(WARP, own.n_edges - base);
    stage_warp(call.edges, own.first, base, own.n_edges, batch);
    for (int k = 0; k < n_batch; ++k) {
      StagedEdge& edge = batch[k];
      const int species = sender_species(edge);
      if (species != loaded) {
#pragma unroll
        for (int m = 0; m < DIM_EDGE; ++m) {
          bar[m] = load<WIDTH>(call.out + own.row(call.edges.n_nodes, m, species), own.active);
#pragma unroll
          for (int i = 0; i < WIDTH; ++i) bar[m].v[i] *= norm;
        }
        loaded = species;
      }
      const Real* coef = call.table + int64_t(edge.row) * (N_COEF * N_HIDDEN) + own.feature;
      Pack<WIDTH> value, slope, value_bar = zero_pack<WIDTH>();
      polynomial_and_slope<WIDTH>(coef, N_HIDDEN, edge.t, own.active, value, slope);
      Real attrs_bar[DIM_EDGE];
#pragma unroll
      for (int m = 0; m < DIM_EDGE; ++m) {
        attrs_bar[m] = dot(value, bar[m]);
        add_product(value_bar, bar[m], edge.y[m]);
      }
      attrs_bar[0] = dot(value_bar, slope);
      __syncwarp();
      sum_over_lanes(attrs_bar, edge.y);
    }
    __syncwarp();

    // One edge per lane: the sums stand where the harmonics stood.

    if (own.lane < n_batch) {
      const StagedEdge& edge = batch[own.lane];
      Real total[DIM_EDGE];
#pragma unroll
      for (int m = 0; m < DIM_EDGE; ++m) total[m] = edge.y[m];
      if (DENSITY && blockIdx.y == 0) {
        Pack<1> value, slope;
        polynomial_and_slope<1>(call.density + int64_t(edge.row) * N_COEF, 1, edge.t, true, value,
                                slope);
        total[0] += rho_bar * slope.v[0];
      }
      add_gradient<(N_HIDDEN > WARP * WIDTH)>(call.edges, own.first + base + own.lane, total);
    }
  }
}
