// The convolution itself.

#pragma once

#include "edge_stream.cuh"

/// Sum every edge's message into its receiver. One warp per row and tile of channels.
///
/// Where a row is a receiver there are no atomics: its edges are added in CSR order, so results
/// repeat bit for bit. Where a row is a chunk of edges in any order (`ANY_ORDER`), sums are handed
/// on whenever the receiver changes. Nothing per edge is written.
///
/// @param message  [n_receivers, DIM_OUT, channels]  OUTPUT: the rows of this group; ADDED TO if
/// ANY_ORDER
template <typename G, int WIDTH, bool ANY_ORDER>
__global__ void __launch_bounds__(BLOCK)
    conv_forward(Graph graph, EdgeArrays inputs, Real* __restrict__ message) {
  const Share share(graph, WIDTH);
  if (share.row < 0) return;
  int64_t receiver = ANY_ORDER ? -1 : share.row;
  Pack<WIDTH> accum[G::N_OUT];
  set_zero(accum);
  const auto hand_on = [&] {
    put_rows_out<G, ANY_ORDER>(message + receiver * DIM_OUT * graph.channels + share.channel,
                               graph.channels, share.active, accum);
  };

  const EdgeRange range = EdgeRange::of<ANY_ORDER>(graph, share.row);
  EdgeStream<G, WIDTH, 1> stream(share, graph, range, {inputs});
  for (int64_t edge = range.first; edge < range.last; ++edge) {
    const auto& data = stream.take();
    if (ANY_ORDER && graph.receiver[edge] != receiver) {
      if (receiver >= 0) hand_on();
      receiver = graph.receiver[edge];
      set_zero(accum);
    }

    // Multiply weights and features, then add each coupling term.

    unrolled<G::N_PAIRS>([&](auto q) {
      constexpr Pair pair = G::PAIRS[q.value];
      const auto weighted =
          product(data.weight[0][pair.path][share.lane], data.feat[0][pair.in][share.lane]);
      unrolled<pair.n_terms>([&](auto k) {
        constexpr Term term = G::TERMS[pair.first_term + k.value];
        add_product(accum[term.out], weighted, Real(term.value) * data.attrs[0][term.edge]);
      });
    });
  }
  hand_on();
}
