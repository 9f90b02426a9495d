// A model's static tables for the CPU passes of the inference path, and the threads' scratch.

#pragma once

#include <memory>
#include <vector>

#include "inference_kernels.h"

namespace mace_stream {

struct FreePlan {
  void operator()(ms_conv_plan* plan) const { ms_conv_free(plan); }
};

struct ConvTables {
  std::unique_ptr<ms_conv_plan, FreePlan> plan; /* null where there is no convolution */
  int64_t channels;
  std::vector<ConvBlock> blocks;
  std::vector<BlockTerm> terms; /* of all blocks, see ConvInputs */
  std::vector<RowPlace> places; /* of every output row */
  int32_t n_output_blocks;
  std::vector<int32_t> zeroed_rows; /* which blocks add to, or none writes */
};

struct ContractTables {
  std::vector<MonomialGroup> groups;
  std::vector<Monomial> monomials;
  int32_t dim, dim_out;
};

struct LayerTables {
  ConvTables conv;
  ContractTables contract;
};

struct RepulsionTables {
  std::vector<double> charge, inverse_length, bond; /* [n_species^2] */
  ms_repulsion formula;
};

/// Memory of one thread.
struct ThreadScratch {
  std::vector<EdgeRun> runs;
  std::vector<char> bytes;

  void reserve(int64_t n_runs, int64_t n_bytes);
  void* aligned();
};

}  // namespace mace_stream

struct ms_inference {
  ms_inference_sizes sizes;
  std::vector<double> harmonic_norms;
  std::vector<mace_stream::LayerTables> layers;
  std::unique_ptr<mace_stream::RepulsionTables> repulsion;
  std::vector<mace_stream::ThreadScratch> threads;
  std::vector<uint8_t> locks;

  double inverse_step() const { return double(sizes.n_knots) / (sizes.r_max - sizes.r_0); }
};
