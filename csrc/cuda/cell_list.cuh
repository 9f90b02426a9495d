// Pairs of atoms within a cutoff, found by cells. Positions only: images are atoms of their own.
//
// Atoms are sorted by cell, x fastest, so that the cells which differ in x alone are one run. Cells
// have at least half the cutoff as side; atoms within the cutoff are at most two cells away.

#pragma once

#include "packs.cuh"

constexpr int REACH = 2;

struct Cells {
  int64_t n_receivers;
  int32_t n[3];
  double origin[3], inverse_side, cutoff_squared;
  const double* x;           // [n_atoms, 3] sorted by cell
  const int32_t* start;      // [n_cells + 1] first atom of each cell
  const int32_t* atom;       // [n_atoms] number of each sorted atom
  const int32_t* receivers;  // [n_receivers] place in the sorted order
};

/// One warp per receiver. Without `FILL` counts its neighbors; with it writes them.
///
/// @param count   [n_receivers] OUTPUT without FILL
/// @param first   [n_receivers + 1] where each receiver's neighbors begin
/// @param senders [n_pairs] OUTPUT with FILL: numbers of the neighbors
template <bool FILL>
__global__ void __launch_bounds__(4 * WARP)
    find_pairs(Cells cells, int64_t* count, const int64_t* first, int32_t* senders) {
  const int lane = threadIdx.x % WARP;
  const int64_t row = int64_t(blockIdx.x) * 4 + threadIdx.x / WARP;
  if (row >= cells.n_receivers) return;
  const int32_t own = cells.receivers[row];
  double center[3];
  int low[3], high[3];
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    center[k] = cells.x[3 * int64_t(own) + k];
    const int cell = min(int((center[k] - cells.origin[k]) * cells.inverse_side), cells.n[k] - 1);
    low[k] = max(cell - REACH, 0);
    high[k] = min(cell + REACH, cells.n[k] - 1);
  }
  int64_t found = FILL ? first[row] : 0;
  for (int z = low[2]; z <= high[2]; ++z)
    for (int y = low[1]; y <= high[1]; ++y) {
      const int64_t line = (int64_t(z) * cells.n[1] + y) * cells.n[0];
      const int last = cells.start[line + high[0] + 1];
      for (int base = cells.start[line + low[0]]; base < last; base += WARP) {
        const int other = base + lane;
        bool inside = other < last && other != own;
        if (inside) {
          double square = 0;
#pragma unroll
          for (int k = 0; k < 3; ++k) {
            const double distance = center[k] - cells.x[3 * int64_t(other) + k];
            square += distance * distance;
          }
          inside = square <= cells.cutoff_squared;
        }
        const unsigned mask = __ballot_sync(ALL_LANES, inside);
        if (FILL && inside) senders[found + __popc(mask & ((1u << lane) - 1))] = cells.atom[other];
        found += __popc(mask);
      }
    }
  if (!FILL && lane == 0) count[row] = found;
}
