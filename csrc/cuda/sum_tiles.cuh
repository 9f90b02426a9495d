// Adds up what the tiles of channels contributed to the harmonics' cotangent.

#pragma once

/// @param tiles  [n_tiles, size]
/// @param sum    [size]  OUTPUT; may not be one of the tiles
__global__ void __launch_bounds__(128)
    sum_tiles(int64_t n_tiles, int64_t size, const Real* __restrict__ tiles,
              Real* __restrict__ sum) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  Real total = Real(0);
  for (int64_t tile = 0; tile < n_tiles; ++tile) total += tiles[tile * size + i];
  sum[i] = total;
}
