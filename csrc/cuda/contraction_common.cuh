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
  Real* msg[DIM];     // rows [n_nodes, CHANNELS]
  Real* out;          // [DIM_OUT, n_nodes, CHANNELS], or its cotangent
  Real* dot;          // [n_nodes], may be null
};

/// `first` is where a row starts, for the thread's nodes and channel.
__device__ __forceinline__ Pack<NODES> load_nodes(const Real* first) {
  Pack<NODES> nodes;
#pragma unroll
  for (int r = 0; r < NODES; ++r) nodes.v[r] = first[r * CHANNELS];
  return nodes;
}

__device__ __forceinline__ void store_nodes(Real* first, const Pack<NODES>& nodes) {
#pragma unroll
  for (int r = 0; r < NODES; ++r) first[r * CHANNELS] = nodes.v[r];
}

/// Where row `m` of `out` starts for a node.
__device__ __forceinline__ Real* out_row(const ContractionCall& call, int m, int64_t node) {
  return call.out + (m * call.n_nodes + node) * CHANNELS;
}
