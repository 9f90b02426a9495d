// Symmetric contraction, first derivative.

#pragma once

#include "contraction_common.cuh"

/// Replaces `msg` by its cotangent, and gives dot = <msg, cotangent> of every node.
__global__ void __launch_bounds__(THREADS) contract_backward(ContractionCall call) {
  __shared__ Real sums[THREADS / WARP][NODES];
  const int64_t node = int64_t(blockIdx.x) * NODES;
  const Real* coefs = call.coefs + int64_t(call.species[node]) * N_TERMS * CHANNELS;
  Real dots[NODES] = {};
  for (int channel = threadIdx.x; channel < CHANNELS; channel += THREADS) {
    Pack<NODES> a[DIM], a_bar[DIM], b_bar[DIM_OUT];
    const int64_t place = node * CHANNELS + channel;
    unrolled<DIM>([&](auto m) { a[m.value] = load_nodes(call.msg[m.value] + place); });
    unrolled<DIM_OUT>(
        [&](auto m) { b_bar[m.value] = load_nodes(out_row(call, m.value, node) + channel); });
    set_zero(a_bar);
    contract_pack_backward(coefs + channel, a, b_bar, a_bar);
    unrolled<DIM>([&](auto m) { store_nodes(call.msg[m.value] + place, a_bar[m.value]); });
#pragma unroll
    for (int m = 0; m < DIM; ++m)
#pragma unroll
      for (int r = 0; r < NODES; ++r) dots[r] = fma(a[m].v[r], a_bar[m].v[r], dots[r]);
  }
  if (!call.dot) return;
#pragma unroll
  for (int r = 0; r < NODES; ++r) {
    for (int half = WARP / 2; half >= 1; half /= 2)
      dots[r] += __shfl_xor_sync(ALL_LANES, dots[r], half);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP][r] = dots[r];
  }
  __syncthreads();
  if (threadIdx.x < NODES) {
    Real total = 0;
    for (int w = 0; w < THREADS / WARP; ++w) total += sums[w][threadIdx.x];
    call.dot[node + threadIdx.x] = total;
  }
}
