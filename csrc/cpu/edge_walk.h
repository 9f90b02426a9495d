// Walks over the edges of a graph, rows shared out to threads.
//
// One thread does a row (a receiver, or a sender) from its first edge to its last in a fixed order,
// so nothing is added atomically, and results do not depend on the number of threads.

#pragma once

#include <algorithm>
#include <cstdint>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "kernels.h"

namespace mace_stream {
namespace cpu {

/// Rows that a thread takes at a time: few, as rows differ in length.
constexpr int ROWS_PER_SHARE = 4;

/// Receiver of an edge.
inline int64_t receiver_of(const ms_graph& graph, int64_t edge) {
  if (graph.receiver) return graph.receiver[edge];
  const int64_t* end = graph.indptr + graph.n_receivers + 1;
  return std::upper_bound(graph.indptr, end, edge) - graph.indptr - 1;
}

/// Calls `start_row(row)`, then `take(block)` for all edges of that row, for every receiver.
template <typename StartRow, typename Take>
void walk_rows(const ms_graph& graph, const StartRow& start_row, const Take& take) {
#pragma omp parallel for schedule(dynamic, ROWS_PER_SHARE)
  for (int64_t row = 0; row < graph.n_receivers; ++row) {
    start_row(row);
    EdgeBlock block;
    block.row = row;
    for (int64_t edge = graph.indptr[row]; edge < graph.indptr[row + 1]; edge += block.count) {
      block.count = int(std::min<int64_t>(EDGES, graph.indptr[row + 1] - edge));
      for (int k = 0; k < block.count; ++k) {
        block.edge[k] = edge + k;
        block.node[k] = graph.sender[edge + k];
      }
      take(block);
    }
  }
}

/// The receivers [first, last) of one thread.
struct RowRange {
  int64_t first, last;

  explicit RowRange(int64_t n_rows) {
#if defined(_OPENMP)
    const int64_t thread = omp_get_thread_num(), n_threads = omp_get_num_threads();
#else
    const int64_t thread = 0, n_threads = 1;
#endif
    first = n_rows * thread / n_threads;
    last = n_rows * (thread + 1) / n_threads;
  }
};

/// The same where edges stand in any order: every thread owns a range of receivers and looks
/// through all edges for theirs, which costs little beside the work on an edge. A block is a run of
/// neighboring edges with one receiver; a row may come in several runs.
template <typename StartRow, typename Take>
void walk_any_order(const ms_graph& graph, const StartRow& start_row, const Take& take) {
#pragma omp parallel
  {
    const RowRange own(graph.n_receivers);
    for (int64_t row = own.first; row < own.last; ++row) start_row(row);
    for (int64_t edge = 0; edge < graph.n_edges;) {
      EdgeBlock block;
      block.row = graph.receiver[edge];
      const bool is_own = block.row >= own.first && block.row < own.last;
      for (; block.count < EDGES && edge < graph.n_edges && graph.receiver[edge] == block.row;
           ++edge, ++block.count) {
        block.edge[block.count] = edge;
        block.node[block.count] = graph.sender[edge];
      }
      if (is_own) take(block);
    }
  }
}

template <typename StartRow, typename Take>
void walk_receivers(const ms_graph& graph, const StartRow& start_row, const Take& take) {
  if (graph.indptr)
    walk_rows(graph, start_row, take);
  else
    walk_any_order(graph, start_row, take);
}

/// The same for every node and the edges that it sends along; a block's nodes are receivers.
template <typename StartRow, typename Take>
void walk_senders(const ms_graph& graph, const StartRow& start_row, const Take& take) {
#pragma omp parallel for schedule(dynamic, ROWS_PER_SHARE)
  for (int64_t row = 0; row < graph.n_nodes; ++row) {
    start_row(row);
    EdgeBlock block;
    block.row = row;
    const int64_t last = graph.n_edges > 0 ? graph.sender_indptr[row + 1] : 0;
    for (int64_t next = graph.n_edges > 0 ? graph.sender_indptr[row] : 0; next < last;
         next += block.count) {
      block.count = int(std::min<int64_t>(EDGES, last - next));
      for (int k = 0; k < block.count; ++k) {
        block.edge[k] = graph.edge_of[next + k];
        block.node[k] = receiver_of(graph, block.edge[k]);
      }
      take(block);
    }
  }
}

}  // namespace cpu
}  // namespace mace_stream
