// The edges of one step, and 32 of them at a time in shared memory.
//
// The text before this file is written per model (mace_stream/kernels/inference_source.py): `Real`,
// `DIM_EDGE`, `N_COEF` and `INVERSE_STEP` of the radial tables, and the functions
//
//   harmonics(x, y, z, Real (&y_lm)[DIM_EDGE])               spherical harmonics of a unit vector
//   pull_back(x, y, z, const Real* bar, Real (&gradient)[3])  sum_m bar_m dY_m/d(x, y, z), m > 0

#pragma once

#include "packs.cuh"

constexpr int PADDED_EDGE = (DIM_EDGE + 3) / 4 * 4;

struct alignas(16) Direction {
  Real x, y, z;
  Real inverse_length;
};

/// ms_edges. The edges of receiver i lie in the slots first[i] to first[i] + count[i].
struct Edges {
  int64_t n_nodes;
  const int64_t* first;
  int32_t* count;
  int32_t* sender;
  int32_t* row;
  Real* t;
  Direction* dir;
  Real* grad;
};

/// What a warp needs of one edge. Lanes write their own, all lanes read one together.
struct alignas(16) StagedEdge {
  Real y[PADDED_EDGE];
  Real t;
  int32_t row, sender;
};

__device__ __forceinline__ void stage(const Edges& edges, int64_t slot, StagedEdge& target) {
  const Direction dir = edges.dir[slot];
  Real y[DIM_EDGE];
  harmonics(dir.x, dir.y, dir.z, y);
#pragma unroll
  for (int m = 0; m < DIM_EDGE; ++m) target.y[m] = y[m];
  target.t = edges.t[slot];
  target.row = edges.row[slot];
  target.sender = edges.sender[slot];
}

// ---- polynomials between the knots of a radial table ----

/// sum_k c_k t^k of the thread's channels; `coef` points to c_0, `stride` numbers before c_1.
template <int WIDTH>
__device__ __forceinline__ Pack<WIDTH> polynomial(const Real* coef, int stride, Real t,
                                                  bool active) {
  Pack<WIDTH> value = load<WIDTH>(coef + (N_COEF - 1) * stride, active);
#pragma unroll
  for (int k = N_COEF - 2; k >= 0; --k) {
    const auto c = load<WIDTH>(coef + k * stride, active);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) value.v[i] = fma(value.v[i], t, c.v[i]);
  }
  return value;
}

/// The same, and its derivative with respect to t.
template <int WIDTH>
__device__ __forceinline__ void polynomial_and_slope(const Real* coef, int stride, Real t,
                                                     bool active, Pack<WIDTH>& value,
                                                     Pack<WIDTH>& slope) {
  value = load<WIDTH>(coef + (N_COEF - 1) * stride, active);
  slope = zero_pack<WIDTH>();
#pragma unroll
  for (int k = N_COEF - 2; k >= 0; --k) {
    const auto c = load<WIDTH>(coef + k * stride, active);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
      slope.v[i] = fma(slope.v[i], t, value.v[i]);
      value.v[i] = fma(value.v[i], t, c.v[i]);
    }
  }
}

/// Sum over the lanes, in every lane.
__device__ __forceinline__ Real sum_of_warp(Real value) {
#pragma unroll
  for (int mask = WARP / 2; mask >= 1; mask /= 2) value += __shfl_xor_sync(ALL_LANES, value, mask);
  return value;
}

// ---- from a row's sums to the gradient of an edge vector ----

/// Sums `part` over the lanes; the lane whose share is component m stores it in target[m].
/// Component 0, whose harmonic is constant, carries the radial gradient instead.
__device__ __forceinline__ void sum_over_lanes(const Real (&values)[DIM_EDGE], Real* target) {
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
  const int component = lane / LANES_PER_VALUE;
  if (lane % LANES_PER_VALUE == 0 && component < DIM_EDGE) target[component] = part[0];
}

/// Adds to grad[slot] what the derivatives with respect to the place between the knots (bar[0])
/// and to the harmonics (bar[m]) mean for the edge vector.
template <bool SHARED>
__device__ __forceinline__ void add_gradient(const Edges& edges, int64_t slot,
                                             const Real (&bar)[DIM_EDGE]) {
  const Direction dir = edges.dir[slot];
  Real g[3];
  pull_back(dir.x, dir.y, dir.z, bar, g);
  const Real along = dir.x * g[0] + dir.y * g[1] + dir.z * g[2];
  const Real radial = bar[0] * Real(INVERSE_STEP) - along * dir.inverse_length;
  const Real n[3] = {dir.x, dir.y, dir.z};
  Real* target = edges.grad + 3 * slot;
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    const Real add = fma(n[k], radial, g[k] * dir.inverse_length);
    if constexpr (SHARED)
      atomicAdd(target + k, add);
    else
      target[k] += add;
  }
}
