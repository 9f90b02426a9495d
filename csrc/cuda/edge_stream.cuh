// The data of a row's edges, copied into shared memory ahead of their use.

#pragma once

#include "conv_common.cuh"

/// Copies `BYTES` (4, 8 or 16) from global to shared memory without waiting.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  const unsigned target = unsigned(__cvta_generic_to_shared(shared));
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(global) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(target), "l"(global), "n"(BYTES)
                 : "memory");
}

/// Closes the group of copies issued since the last call.
__device__ __forceinline__ void close_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most `PENDING` of the closed groups are unfinished.
template <int PENDING>
__device__ __forceinline__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/// One edge's data for one warp. `SETS` is 1 for the inputs, 2 for the inputs and their cotangents.
template <typename G, int WIDTH, int SETS>
struct Stage {
  static constexpr int ATTRS = (DIM_EDGE + 3) / 4 * 4;
  Pack<WIDTH> weight[SETS][G::N_PATHS][WARP];
  Pack<WIDTH> feat[SETS][G::N_IN][WARP];
  Real attrs[SETS][ATTRS];
};

/// A ring of `STAGES` edges per warp. A lane reads back only the channels that it copied itself;
/// the harmonics are shared by the warp. With many bytes on their way and few registers holding
/// them, the passes run close to the memory's rate.
template <typename G, int WIDTH, int SETS>
class EdgeStream {
 public:
  using Slot = Stage<G, WIDTH, SETS>;

  __device__ EdgeStream(const Share& share, const Graph& graph, EdgeRange range,
                        const EdgeArrays (&arrays)[SETS])
      : share_(share),
        channels_(graph.channels),
        sender_(graph.sender),
        next_(range.first),
        last_(range.last) {
    extern __shared__ __align__(16) unsigned char shared_memory[];
    ring_ = reinterpret_cast<Slot*>(shared_memory) + threadIdx.x / WARP * STAGES;
#pragma unroll
    for (int s = 0; s < SETS; ++s) arrays_[s] = arrays[s];
    clear_missing();
    for (int stage = 0; stage < STAGES - 1; ++stage) issue();
  }

  /// The data of the next edge, valid until the next call. All lanes call it together.
  __device__ __forceinline__ const Slot& take() {
    wait_for_groups<STAGES - 2>();
    __syncwarp();
    const Slot& slot = ring_[taken_];
    issue();
    taken_ = taken_ + 1 == STAGES ? 0 : taken_ + 1;
    return slot;
  }

 private:
  /// Asks for one more edge, into the slot that was used last.
  __device__ __forceinline__ void issue() {
    if (next_ < last_) {
#pragma unroll
      for (int s = 0; s < SETS; ++s) copy_set(ring_[filled_], s);
      ++next_;
    }
    close_group();
    filled_ = filled_ + 1 == STAGES ? 0 : filled_ + 1;
  }

  __device__ __forceinline__ void copy_set(Slot& slot, int s) {
    constexpr int BYTES = sizeof(Pack<WIDTH>);
    const EdgeArrays& from = arrays_[s];
    const int64_t first_path = next_ * N_PATHS * channels_ + share_.channel;
    const int64_t first_row = int64_t(sender_[next_]) * DIM_IN * channels_ + share_.channel;
    if (share_.active && from.path_weights)
      unrolled<G::N_PATHS>([&](auto p) {
        constexpr int path = G::PATHS[p.value];
        copy_async<BYTES>(&slot.weight[s][p.value][share_.lane],
                          from.path_weights + first_path + path * channels_);
      });
    if (share_.active && from.node_feats)
      unrolled<G::N_IN>([&](auto m) {
        constexpr int row = G::ROWS_IN[m.value];
        copy_async<BYTES>(&slot.feat[s][m.value][share_.lane],
                          from.node_feats + first_row + row * channels_);
      });
    if (from.edge_attrs && share_.lane < DIM_EDGE)
      copy_async<sizeof(Real)>(&slot.attrs[s][share_.lane],
                               from.edge_attrs + next_ * DIM_EDGE + share_.lane);
  }

  /// Zeros for lanes beyond the last channel and for arrays that are not there.
  __device__ void clear_missing() {
    for (int stage = 0; stage < STAGES; ++stage)
      for (int s = 0; s < SETS; ++s) clear_missing_of(ring_[stage], s);
    __syncwarp();
  }

  __device__ void clear_missing_of(Slot& slot, int s) {
    const EdgeArrays& from = arrays_[s];
    if (!share_.active || !from.path_weights)
      for (int p = 0; p < G::N_PATHS; ++p) slot.weight[s][p][share_.lane] = zero_pack<WIDTH>();
    if (!share_.active || !from.node_feats)
      for (int m = 0; m < G::N_IN; ++m) slot.feat[s][m][share_.lane] = zero_pack<WIDTH>();
    if (!from.edge_attrs && share_.lane < DIM_EDGE) slot.attrs[s][share_.lane] = Real(0);
  }

  Slot* ring_;
  EdgeArrays arrays_[SETS];
  const Share& share_;
  int64_t channels_;
  const int32_t* sender_;
  int64_t next_, last_;
  int taken_ = 0, filled_ = 0;
};
