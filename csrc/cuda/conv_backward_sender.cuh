// Node cotangents without atomics: the sender-owned part of a derivative.

#pragma once

#include "conv_common.cuh"

/// Sum what a node receives from all edges of which it is the sender. One warp per sender and tile
/// of channels; the edges of a sender are taken in the order of `edge_of`, so results repeat bit
/// for bit.
///
/// Called with (edge_attrs, path_weights) it adds the node cotangents of the convolution. The
/// second derivative calls it twice, with one of the two replaced by its cotangent.
///
/// @param graph           `indptr` and `edge_of` group the edges by sender
/// @param message_bar     [n_receivers, DIM_OUT, channels]
/// @param node_feats_bar  [n_nodes, DIM_IN, channels]       ADDED TO
template <typename G, int WIDTH>
__global__ void __launch_bounds__(BLOCK)
    conv_backward_sender(Graph graph, EdgeArrays inputs, const Real* __restrict__ message_bar,
                         Real* __restrict__ node_feats_bar) {
  const Share share(graph, WIDTH);
  if (share.row < 0) return;
  const int64_t channels = graph.channels;
  Pack<WIDTH> feat_bar[G::N_IN];
  set_zero(feat_bar);

  const EdgeRange range = EdgeRange::of<false>(graph, share.row);
  for (int64_t k = range.first; k < range.last; ++k) {
    const int64_t edge = graph.edge_of[k];
    const Real* weights = inputs.path_weights + edge * N_PATHS * channels + share.channel;
    const Real* attrs = inputs.edge_attrs + edge * DIM_EDGE;
    Pack<WIDTH> bar[G::N_OUT];
    load_rows_out<G>(
        message_bar + int64_t(graph.receiver[edge]) * DIM_OUT * channels + share.channel, channels,
        share.active, bar);

    // Contract the message cotangent with the harmonics, then with the weights.

    unrolled<G::N_PAIRS>([&](auto q) {
      constexpr Pair pair = G::PAIRS[q.value];
      constexpr int path = G::PATHS[pair.path];
      auto coupled = zero_pack<WIDTH>();
      unrolled<pair.n_terms>([&](auto t) {
        constexpr Term term = G::TERMS[pair.first_term + t.value];
        add_product(coupled, bar[term.out], Real(term.value) * attrs[term.edge]);
      });
      add_product(feat_bar[pair.in], coupled, load<WIDTH>(weights + path * channels, share.active));
    });
  }

  // Add to what earlier groups wrote; no other warp touches these rows.

  Real* out = node_feats_bar + share.row * DIM_IN * channels + share.channel;
  unrolled<G::N_IN>([&](auto m) {
    constexpr int row = G::ROWS_IN[m.value];
    Pack<WIDTH> sum = load<WIDTH>(out + row * channels, share.active);
    add_product(sum, feat_bar[m.value], Real(1));
    store<WIDTH>(out + row * channels, sum, share.active);
  });
}
