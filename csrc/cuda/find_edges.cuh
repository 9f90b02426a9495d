// Positions to edges: which candidates of the neighbor list lie within r_max, where, and their
// nuclear repulsion. Geometry is done in double precision.
//
// Written per model: `R_0`, `R_MAX`, `INVERSE_STEP`, `N_KNOTS`, `N_SPECIES`, `ZBL_ORDER` (0 where
// there is no repulsion), `ZBL_COEFFICIENTS`, `ZBL_DECAYS`.

#pragma once

#include "edge_batch.cuh"

/// Slots of receiver i: first[i] to first[i + 1].
struct List {
  int64_t n_nodes;
  const int64_t* first;
  const int32_t* node_atom;
  const int32_t* slot_atom;
  const int32_t* slot_node;
  const int32_t* species;
};

/// Per ordered pair of species; see Repulsion in mace_stream/kernels/inference.py.
struct Zbl {
  const double* charge;
  const double* inverse_length;
  const double* bond;
};

/// Energy of one edge, and its derivative with respect to the distance.
__device__ __forceinline__ double repulsion(const Zbl& zbl, int pair, double r, double& slope) {
  slope = 0;
  const double x = r / zbl.bond[pair];
  if (ZBL_ORDER == 0 || x >= 1) return 0;
  double screening = 0, screening_slope = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const double decay = ZBL_DECAYS[k] * zbl.inverse_length[pair];
    const double term = ZBL_COEFFICIENTS[k] * exp(-decay * r);
    screening += term;
    screening_slope -= decay * term;
  }

  // The envelope is 1 - a x^p + b x^(p+1) - c x^(p+2).

  constexpr double p = ZBL_ORDER, a = (p + 1) * (p + 2) / 2, b = p * (p + 2), c = p * (p + 1) / 2;
  double power = 1;
#pragma unroll
  for (int k = 1; k < ZBL_ORDER; ++k) power *= x;
  const double envelope = 1 + power * x * (-a + x * (b - x * c));
  const double envelope_slope =
      power * (-a * p + x * (b * (p + 1) - x * c * (p + 2))) / zbl.bond[pair];
  const double energy = zbl.charge[pair] / r;
  slope =
      energy * (screening_slope * envelope + screening * envelope_slope - screening * envelope / r);
  return energy * screening * envelope;
}

/// One warp per receiver packs the edges within r_max to the front of its slots, order kept.
///
/// @param x            [n_atoms, 3] float64
/// @param node_energy  [n_nodes] OUTPUT: repulsion of the row's edges
/// @param closest      [1] smallest distance below R_0, untouched if there is none
__global__ void __launch_bounds__(4 * WARP)
    find_edges(List list, const double* __restrict__ x, Edges edges, Zbl zbl, double* node_energy,
               unsigned long long* closest) {
  const int lane = threadIdx.x % WARP;
  const int64_t node = int64_t(blockIdx.x) * 4 + threadIdx.x / WARP;
  if (node >= list.n_nodes) return;
  const int64_t first = list.first[node], last = list.first[node + 1];
  const double* own = x + 3 * int64_t(list.node_atom[node]);
  const double center[3] = {own[0], own[1], own[2]};
  double energy = 0;
  int kept = 0;
  for (int64_t base = first; base < last; base += WARP) {
    const int64_t slot = base + lane;
    double vec[3], square = 0;
    bool inside = false;
    int sender = 0;
    if (slot < last) {
      const double* other = x + 3 * int64_t(list.slot_atom[slot]);
      sender = list.slot_node[slot];
#pragma unroll
      for (int k = 0; k < 3; ++k) {
        vec[k] = center[k] - other[k];
        square += vec[k] * vec[k];
      }
      inside = square < R_MAX * R_MAX;
    }
    const unsigned mask = __ballot_sync(ALL_LANES, inside);
    if (inside) {
      const int64_t at = first + kept + __popc(mask & ((1u << lane) - 1));
      const double r = sqrt(square), inverse = 1 / r;
      if (r < R_0) atomicMin(closest, (unsigned long long)__double_as_longlong(r));
      const double u = fmax((r - R_0) * INVERSE_STEP, 0.0);
      const int knot = min(int(u), N_KNOTS - 1);
      const int pair = list.species[node] * N_SPECIES + list.species[sender];
      edges.sender[at] = sender;
      edges.row[at] = pair * N_KNOTS + knot;
      edges.t[at] = Real(u - knot);
      edges.dir[at] = {Real(vec[0] * inverse), Real(vec[1] * inverse), Real(vec[2] * inverse),
                       Real(inverse)};
      double slope;
      energy += repulsion(zbl, pair, r, slope);
#pragma unroll
      for (int k = 0; k < 3; ++k) edges.grad[3 * at + k] = Real(slope * vec[k] * inverse);
    }
    kept += __popc(mask);
  }
#pragma unroll
  for (int half = WARP / 2; half >= 1; half /= 2)
    energy += __shfl_xor_sync(ALL_LANES, energy, half);
  if (lane == 0) {
    edges.count[node] = kept;
    node_energy[node] = energy;
  }
}
