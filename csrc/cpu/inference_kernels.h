// What the CPU kernels offer to the passes of the inference path, for every instruction set.
//
// Plain structs only: a function that two instruction sets shared would be linked once, perhaps
// compiled for a newer processor than the one at hand.

#pragma once

#include <cstdint>
#include <utility>

#include "kernels.h"
#include "mace_stream/inference.h"

namespace mace_stream {

constexpr int MAX_L = 4;
constexpr int MAX_HARMONICS = (MAX_L + 1) * (MAX_L + 1);
constexpr int MAX_CORRELATION = 4;

/// Places for the cotangents of an edge's harmonics. A path adds to a few of them at once, whole
/// vectors, starting anywhere.
constexpr int HARMONICS_AT_ONCE = 16, ATTRS_STRIDE = 48;
static_assert(MAX_HARMONICS + HARMONICS_AT_ONCE <= ATTRS_STRIDE, "would add to the next edge");

/// Some neighboring edges of one row, at most EDGES.
struct EdgeRun {
  int64_t receiver, edge;
  int32_t count;
  bool starts_sum;        /* the run before belongs to another receiver, or species */
  int32_t sender_species; /* of all of them, where runs are cut by species */
};

/// Edges of a chunk of receivers.
struct EdgeRuns {
  const EdgeRun* runs;
  int64_t n_runs;
};

/// What every pass over edges needs.
template <typename T>
struct EdgeInputs {
  const int32_t *sender, *row;
  const T *t, *dir;
  T* grad;
  int32_t l_max, n_coef;
  const double* harmonic_norms; /* [(l_max + 1)^2] */
  double inverse_step;
  const T* norm; /* of every receiver, or null */
};

template <typename T>
struct ScatterInputs {
  EdgeInputs<T> edges;
  int64_t n_nodes, n_hidden;
  int32_t n_species;
  const T* table; /* [rows, n_coef, n_hidden] */
};

/// Where a row of a plan's output lies: out[block][(base * n + receiver * n_paths + path) *
/// channels].
struct RowPlace {
  int64_t base;
  int32_t block, n_paths, path;
};

/// A path, or a piece of it, that couples something. Terms are sorted by input, then output row.
struct ConvBlock : PathBlock {
  int32_t first_edge, n_edge; /* harmonics that it reads, at most HARMONICS_AT_ONCE */
  bool adds;                  /* whether another block writes a row of this one */
};

template <typename T>
struct ConvInputs {
  EdgeInputs<T> edges;
  const ConvBlock* blocks;
  int32_t n_blocks, n_paths, dim_edge;
  const RowPlace* places; /* [dim_out] */
  int64_t channels, n_senders;
  ms_tile tile;
  const T *up, *table;
};

/// Spin locks of senders, so that threads can add to their features' cotangents. Null for one
/// thread.
struct SenderLocks {
  uint8_t* locks; /* [mask + 1] */
  int64_t mask;
  void (*wait)(); /* lets other threads run */
};

/// Two more factors of a monomial; the row after the last message row stands for 1.
struct Monomial {
  int32_t number, factors[2];
};

/// Monomials of one output that share two factors.
struct MonomialGroup {
  int32_t out, factors[2];
  int32_t first, last;
};

template <typename T>
struct ContractInputs {
  const MonomialGroup* groups; /* sorted by output */
  const Monomial* monomials;
  int32_t n_groups, n_monomials, dim, dim_out;
  int64_t channels;
  ms_tile tile;
  const int32_t* species;
  const T* coefs;
};

/// Scratch is aligned to 64 bytes; its size in numbers follows from the *_scratch functions.
template <typename T>
struct InferenceKernels {
  void (*scatter)(const ScatterInputs<T>&, const EdgeRuns&, T* out, T* scratch);
  void (*scatter_backward)(const ScatterInputs<T>&, const EdgeRuns&, const T* out_bar, T* scratch);
  void (*conv)(const ConvInputs<T>&, const EdgeRuns&, T* const* out, T* scratch);
  void (*conv_backward)(const ConvInputs<T>&, const EdgeRuns&, const T* const* out_bar, T* up_bar,
                        const SenderLocks&, T* scratch);
  void (*contract)(const ContractInputs<T>&, int64_t first, int64_t last, const T* const* msg,
                   T* out, T* scratch);
  void (*contract_backward)(const ContractInputs<T>&, int64_t first, int64_t last, T* const* msg,
                            const T* out_bar, T* dot, T* scratch);
};

/// The fastest kernels that this processor runs.
template <typename T>
const InferenceKernels<T>& best_inference_kernels();

/// Vectors per 64 bytes, the widest: what scratch is padded for.
__attribute__((always_inline)) constexpr int64_t padded(int64_t size) {
  return (size + 15) / 16 * 16;
}

inline int64_t scatter_scratch(int64_t n_hidden) {
  return (2 * EDGES + MAX_HARMONICS) * padded(n_hidden);
}

inline int64_t conv_scratch(int64_t channels, int64_t dim_edge, int64_t n_runs) {
  return (4 + MAX_BLOCK_ROWS) * padded(channels) + n_runs * EDGES * (dim_edge + ATTRS_STRIDE + 1);
}

/// Nodes that the contraction takes at a time.
constexpr int CONTRACT_NODES = 4;

inline int64_t contract_scratch(int64_t n_monomials, int64_t dim) {
  return 16 * (n_monomials + 2 * (dim + 1) * CONTRACT_NODES);
}

}  // namespace mace_stream
