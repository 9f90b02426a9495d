// Symmetric contraction, forward.

#pragma once

#include "contraction_common.cuh"

__global__ void __launch_bounds__(THREADS) contract(ContractionCall call) {
  const int64_t node = int64_t(blockIdx.x) * NODES;
  const Real* coefs = call.coefs + int64_t(call.species[node]) * N_TERMS * CHANNELS;
  for (int channel = threadIdx.x; channel < CHANNELS; channel += THREADS) {
    Pack<NODES> a[DIM], b[DIM_OUT];
    const int64_t place = node * CHANNELS + channel;
    unrolled<DIM>([&](auto m) { a[m.value] = load_nodes(call.msg[m.value] + place); });
    set_zero(b);
    contract_pack(coefs + channel, a, b);
    unrolled<DIM_OUT>(
        [&](auto m) { store_nodes(out_row(call, m.value, node) + channel, b[m.value]); });
  }
}
