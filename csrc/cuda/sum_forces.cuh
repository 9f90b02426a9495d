// Gradients of the edge vectors to forces and virials, in double precision.

#pragma once

#include "edge_batch.cuh"

/// One warp takes one receiver after the other. With edge_vec = x[receiver] - x[sender] a gradient
/// pushes its two atoms in opposite directions.
///
/// @param forces           [n_senders, 3] ADDED TO
/// @param virial           [9] ADDED TO: -sum edge_vec (x) gradient
/// @param receiver_virial  [n_nodes, 9]   ADDED TO, by the receiver of each edge; may be null
/// @param sender_virial    [n_senders, 9] ADDED TO, by the sender; may be null
__global__ void __launch_bounds__(4 * WARP)
    sum_forces(Edges edges, double* forces, double* virial, double* receiver_virial,
               double* sender_virial) {
  const int lane = threadIdx.x % WARP;
  const int64_t step = int64_t(gridDim.x) * 4;
  double total[9] = {};
  for (int64_t node = int64_t(blockIdx.x) * 4 + threadIdx.x / WARP; node < edges.n_nodes;
       node += step) {
    const int64_t first = edges.first[node];
    double force[3] = {};
    double own[9] = {};
    for (int k = lane; k < edges.count[node]; k += WARP) {
      const int64_t slot = first + k, sender = edges.sender[slot];
      const Direction dir = edges.dir[slot];
      const double length = 1 / double(dir.inverse_length);
      const double vec[3] = {dir.x * length, dir.y * length, dir.z * length};
#pragma unroll
      for (int a = 0; a < 3; ++a) {
        const double grad = edges.grad[3 * slot + a];
        force[a] -= grad;
        atomicAdd(forces + 3 * sender + a, grad);
#pragma unroll
        for (int b = 0; b < 3; ++b) {
          const double share = -vec[b] * grad;
          own[3 * b + a] += share;
          if (sender_virial) atomicAdd(sender_virial + 9 * sender + 3 * b + a, share);
        }
      }
    }
#pragma unroll
    for (int a = 0; a < 9; ++a) {
      total[a] += own[a];
      if (receiver_virial) atomicAdd(receiver_virial + 9 * node + a, own[a]);
    }
#pragma unroll
    for (int a = 0; a < 3; ++a) {
      for (int half = WARP / 2; half >= 1; half /= 2)
        force[a] += __shfl_xor_sync(ALL_LANES, force[a], half);
      if (lane == 0) atomicAdd(forces + 3 * node + a, force[a]);
    }
  }
#pragma unroll
  for (int a = 0; a < 9; ++a) {
    for (int half = WARP / 2; half >= 1; half /= 2)
      total[a] += __shfl_xor_sync(ALL_LANES, total[a], half);
    if (lane == 0) atomicAdd(virial + a, total[a]);
  }
}
