// What both passes of the symmetric contraction share: a polynomial of the message components, for
// every node and channel.
//
// The polynomials are written out per model (mace_stream/kernels/contraction_source.py):
//
//   contract_pack(const Real* coefs, const Pack<NODES> (&a)[DIM], Pack<NODES> (&b)[DIM_OUT])
//   contract_pack_backward(coefs, a, b_bar, Pack<NODES> (&a_bar)[DIM])
//
// A thread takes one channel of `NODES` neighboring nodes of one species, so that a coefficient is
// read once for all of them.

#pragma once

#include "packs.cuh"

/// Nodes are counted within the tile; `species` and `dot` start at its first node.
struct ContractionCall {
  int64_t n_nodes;
  const int32_t* species;
  const Real* coefs;  // [n_species, N_TERMS, CHANNELS]
  Real* msg;          // [DIM, n_nodes, CHANNELS]
  Real* out;          // [DIM_OUT, n_nodes, CHANNELS], or its cotangent
  Real* dot;          // [n_nodes], may be null
};

template <int DIMENSION>
__device__ __forceinline__ void load_nodes(const Real* source, const ContractionCall& call,
                                           int64_t node, int channel,
                                           Pack<NODES> (&rows)[DIMENSION]) {
#pragma unroll
  for (int m = 0; m < DIMENSION; ++m)
#pragma unroll
    for (int r = 0; r < NODES; ++r)
      rows[m].v[r] = source[(m * call.n_nodes + node + r) * CHANNELS + channel];
}

template <int DIMENSION>
__device__ __forceinline__ void store_nodes(Real* target, const ContractionCall& call, int64_t node,
                                            int channel, const Pack<NODES> (&rows)[DIMENSION]) {
#pragma unroll
  for (int m = 0; m < DIMENSION; ++m)
#pragma unroll
    for (int r = 0; r < NODES; ++r)
      target[(m * call.n_nodes + node + r) * CHANNELS + channel] = rows[m].v[r];
}
