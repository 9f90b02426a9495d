// First derivative of the convolution: what the three inputs contribute to <message_bar, message>.

#pragma once

#include "edge_stream.cuh"

/// Cotangents of all three inputs. One warp per row and tile of channels keeps the receiver's
/// message cotangent while it walks the edges.
///
/// Weight cotangents are written directly; cotangents of the harmonics are summed over the warp's
/// channels and stored per tile, so that neither needs atomics. Node cotangents are added
/// atomically, unless `NODES` is false: then a sender-owned pass makes them, or nobody wants them.
///
/// @param message_bar       [n_receivers, DIM_OUT, channels]
/// @param node_feats_bar    [n_nodes, DIM_IN, channels]     ADDED TO
/// @param edge_attrs_bar    [n_tiles, n_edges, DIM_EDGE]    OUTPUT: one summand per tile
/// @param path_weights_bar  [n_edges, N_PATHS, channels]    OUTPUT: the paths of this group
template <typename G, int WIDTH, bool ANY_ORDER, bool NODES>
__global__ void __launch_bounds__(BLOCK)
    conv_backward(Graph graph, EdgeArrays inputs, const Real* __restrict__ message_bar,
                  Real* __restrict__ node_feats_bar, Real* __restrict__ edge_attrs_bar,
                  Real* __restrict__ path_weights_bar) {
  const Share share(graph, WIDTH);
  if (share.row < 0) return;
  const int64_t channels = graph.channels;
  int64_t receiver = ANY_ORDER ? -1 : share.row;
  Pack<WIDTH> bar[G::N_OUT];
  const auto load_bar = [&] {
    load_rows_out<G>(message_bar + receiver * DIM_OUT * channels + share.channel, channels,
                     share.active, bar);
  };
  if (!ANY_ORDER) load_bar();

  const EdgeRange range = EdgeRange::of<ANY_ORDER>(graph, share.row);
  EdgeStream<G, WIDTH, 1> stream(share, graph, range, {inputs});
  for (int64_t edge = range.first; edge < range.last; ++edge) {
    const auto& data = stream.take();
    if (ANY_ORDER && graph.receiver[edge] != receiver) {
      receiver = graph.receiver[edge];
      load_bar();
    }
    Pack<WIDTH> weight_bar[G::N_PATHS], feat_bar[G::N_IN];
    Real attrs_bar[DIM_EDGE] = {};
    set_zero(weight_bar);
    set_zero(feat_bar);
    unrolled<G::N_PAIRS>([&](auto q) {
      constexpr Pair pair = G::PAIRS[q.value];
      const auto weight = data.weight[0][pair.path][share.lane];
      const auto feat = data.feat[0][pair.in][share.lane];
      const auto weighted = product(weight, feat);
      auto coupled = zero_pack<WIDTH>();

      // Contract the message cotangent with the harmonics, and with weight * feature.

      unrolled<pair.n_terms>([&](auto k) {
        constexpr Term term = G::TERMS[pair.first_term + k.value];
        constexpr Real value = Real(term.value);
        add_product(coupled, bar[term.out], value * data.attrs[0][term.edge]);
        attrs_bar[term.edge] = fma(value, dot(weighted, bar[term.out]), attrs_bar[term.edge]);
      });

      // Split the pair between the weight and the feature.

      add_product(weight_bar[pair.path], coupled, feat);
      if constexpr (NODES) add_product(feat_bar[pair.in], coupled, weight);
    });

    // Hand the three cotangents on.

    store_paths<G>(path_weights_bar + edge * N_PATHS * channels + share.channel, channels,
                   share.active, weight_bar);
    if constexpr (NODES)
      add_rows_in<G>(
          node_feats_bar + int64_t(graph.sender[edge]) * DIM_IN * channels + share.channel,
          channels, share.active, feat_bar);
    reduce_and_store<G::FIRST>(attrs_bar,
                               edge_attrs_bar + (share.tile * graph.n_edges + edge) * DIM_EDGE);
  }
}
