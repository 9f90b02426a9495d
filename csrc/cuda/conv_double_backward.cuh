// Second derivative of the convolution: the VJP of conv_backward.

#pragma once

#include "edge_stream.cuh"

/// Derivatives of S = <a_x, node_feats_bar> + <a_y, edge_attrs_bar> + <a_w, path_weights_bar>. The
/// convolution f is linear in each input, so with x, y, w the inputs and g the message cotangent
///
///   S = <g, f(a_x, y, w) + f(x, a_y, w) + f(x, y, a_w)>,
///
/// and every derivative is a sum of forward or backward passes, done here in one walk over the
/// edges.
///
/// @param cotangents         a_x, a_y, a_w
/// @param node_feats_grad    [n_nodes, DIM_IN, channels]      ADDED TO, unless NODES is false
/// @param edge_attrs_grad    [n_tiles, n_edges, DIM_EDGE]     OUTPUT: one summand per tile
/// @param path_weights_grad  [n_edges, N_PATHS, channels]     OUTPUT: the paths of this group
/// @param message_bar_grad   [n_receivers, DIM_OUT, channels] OUTPUT: this group's rows; ADDED TO
/// if ANY_ORDER; null where nobody wants it
template <typename G, int WIDTH, bool ANY_ORDER, bool NODES>
__global__ void __launch_bounds__(BLOCK)
    conv_double_backward(Graph graph, EdgeArrays inputs, EdgeArrays cotangents,
                         const Real* __restrict__ message_bar, Real* __restrict__ node_feats_grad,
                         Real* __restrict__ edge_attrs_grad, Real* __restrict__ path_weights_grad,
                         Real* __restrict__ message_bar_grad) {
  const Share share(graph, WIDTH);
  if (share.row < 0) return;
  const int64_t channels = graph.channels;
  int64_t receiver = ANY_ORDER ? -1 : share.row;
  Pack<WIDTH> bar[G::N_OUT], bar_grad[G::N_OUT];
  set_zero(bar_grad);
  const auto own_rows = [&] { return receiver * DIM_OUT * channels + share.channel; };
  const auto load_bar = [&] {
    load_rows_out<G>(message_bar + own_rows(), channels, share.active, bar);
  };
  const auto hand_on = [&] {
    if (!message_bar_grad) return;
    put_rows_out<G, ANY_ORDER>(message_bar_grad + own_rows(), channels, share.active, bar_grad);
  };
  if (!ANY_ORDER) load_bar();

  const EdgeRange range = EdgeRange::of<ANY_ORDER>(graph, share.row);
  EdgeStream<G, WIDTH, 2> stream(share, graph, range, {inputs, cotangents});
  for (int64_t edge = range.first; edge < range.last; ++edge) {
    const auto& data = stream.take();
    if (ANY_ORDER && graph.receiver[edge] != receiver) {
      if (receiver >= 0) hand_on();
      receiver = graph.receiver[edge];
      load_bar();
      set_zero(bar_grad);
    }
    Pack<WIDTH> weight_grad[G::N_PATHS], feat_grad[G::N_IN];
    Real attrs_grad[DIM_EDGE] = {};
    set_zero(weight_grad);
    set_zero(feat_grad);
    unrolled<G::N_PAIRS>([&](auto q) {
      constexpr Pair pair = G::PAIRS[q.value];
      const auto weight = data.weight[0][pair.path][share.lane];
      const auto feat = data.feat[0][pair.in][share.lane];
      const auto weight_ct = data.weight[1][pair.path][share.lane];
      const auto feat_ct = data.feat[1][pair.in][share.lane];
      const auto still = product(weight, feat);
      auto moved = product(weight, feat_ct);
      add_product(moved, weight_ct, feat);
      auto coupled = zero_pack<WIDTH>(), coupled_ct = zero_pack<WIDTH>();

      // Forward terms of S, and what the message cotangent couples to.

      unrolled<pair.n_terms>([&](auto k) {
        constexpr Term term = G::TERMS[pair.first_term + k.value];
        constexpr Real value = Real(term.value);
        const Real attr = value * data.attrs[0][term.edge];
        const Real attr_ct = value * data.attrs[1][term.edge];
        add_product(bar_grad[term.out], moved, attr);
        add_product(bar_grad[term.out], still, attr_ct);
        add_product(coupled, bar[term.out], attr);
        add_product(coupled_ct, bar[term.out], attr_ct);
        attrs_grad[term.edge] = fma(value, dot(moved, bar[term.out]), attrs_grad[term.edge]);
      });

      // Split the pair between the weight and the feature.

      add_product(weight_grad[pair.path], coupled, feat_ct);
      add_product(weight_grad[pair.path], coupled_ct, feat);
      if constexpr (NODES) {
        add_product(feat_grad[pair.in], coupled, weight_ct);
        add_product(feat_grad[pair.in], coupled_ct, weight);
      }
    });

    // Hand the derivatives on.

    store_paths<G>(path_weights_grad + edge * N_PATHS * channels + share.channel, channels,
                   share.active, weight_grad);
    if constexpr (NODES)
      add_rows_in<G>(
          node_feats_grad + int64_t(graph.sender[edge]) * DIM_IN * channels + share.channel,
          channels, share.active, feat_grad);
    reduce_and_store<G::FIRST>(attrs_grad,
                               edge_attrs_grad + (share.tile * graph.n_edges + edge) * DIM_EDGE);
  }
  hand_on();
}
