// A convolution's static tables, cut into the blocks that the CPU kernels are compiled for.

#pragma once

#include <cstdint>
#include <vector>

#include "../launch/conv_cuda.h"
#include "mace_stream/conv.h"

namespace mace_stream {

/// Rows of a block on either side: 2 l + 1 at l = 4.
constexpr int MAX_BLOCK_ROWS = 9;

/// Bound of `dim_edge`, so that a thread's scratch fits on its stack: (l + 1)^2 at l = 7.
constexpr int MAX_DIM_EDGE = 64;

/// One coupling of a block; `in` and `out` count the block's own rows.
struct BlockTerm {
  int32_t in, edge, out;
  double value;
};

/// One path, or a piece of it: couplings between a few input rows and a few output rows. The counts
/// are odd and at most MAX_BLOCK_ROWS; paths of other shapes are cut into several blocks.
struct PathBlock {
  int32_t path;
  bool first_of_path;
  int32_t n_in, n_out, n_terms;
  int32_t rows_in[MAX_BLOCK_ROWS], rows_out[MAX_BLOCK_ROWS];
  const BlockTerm* terms;
};

}  // namespace mace_stream

struct ms_conv_plan {
  ms_conv_dims dims;
  std::vector<mace_stream::PathBlock> blocks; /* by path; every path has at least one */
  std::vector<mace_stream::BlockTerm> terms;  /* of all blocks */
  mace_stream::ConvCuda cuda;                 /* kernels loaded so far */

  explicit ms_conv_plan(const ms_conv_dims& sizes) : dims(sizes), cuda(sizes) {}
};
