// The symmetric contraction: polynomials of the message components of one channel, as nested sums
// over the tree of monomials. Included by the isa_*.cpp files only.

namespace mace_stream {
namespace ISA {

/// One vector of channels of CONTRACT_NODES nodes of one species.
template <typename T>
struct ContractTile {
  typedef Vec<T> Vecs[CONTRACT_NODES];

  const MonomialNode* tree;
  const Vec<T>* coefs; /* [n_monomials] */
  const Vecs* feats;   /* [dim] */
  Vecs* feats_bar;     /* [dim] */

  MS_INLINE void start(const MonomialNode& node, Vecs& sum) const {
    const Vec<T> coef = node.monomial < 0 ? Vec<T>{} : coefs[node.monomial];
    for (int j = 0; j < CONTRACT_NODES; ++j) sum[j] = coef;
  }

  /// sum = coefficient + sum over children of factor * value.
  template <int DEPTH>
  MS_INLINE void value(const MonomialNode& node, Vecs& sum) const {
    start(node, sum);
    if constexpr (DEPTH > 0)
      for (int c = node.first_child; c < node.last_child; ++c) {
        const Vecs& feat = feats[tree[c].factor];
        if (tree[c].first_child == tree[c].last_child) {
          const Vec<T> coef = coefs[tree[c].monomial];
          for (int j = 0; j < CONTRACT_NODES; ++j) sum[j] += feat[j] * coef;
        } else {
          Vecs inner;
          value<DEPTH - 1>(tree[c], inner);
          for (int j = 0; j < CONTRACT_NODES; ++j) sum[j] += feat[j] * inner[j];
        }
      }
  }

  /// Likewise; adds to feats_bar, given the cotangent of the node's value.
  template <int DEPTH>
  MS_INLINE void backward(const MonomialNode& node, const Vecs& bar, Vecs& sum) const {
    start(node, sum);
    if constexpr (DEPTH > 0)
      for (int c = node.first_child; c < node.last_child; ++c) {
        const Vecs& feat = feats[tree[c].factor];
        Vecs& feat_bar = feats_bar[tree[c].factor];
        if (tree[c].first_child == tree[c].last_child) {
          const Vec<T> coef = coefs[tree[c].monomial];
          for (int j = 0; j < CONTRACT_NODES; ++j) {
            feat_bar[j] += bar[j] * coef;
            sum[j] += feat[j] * coef;
          }
        } else {
          Vecs inner, inner_bar;
          for (int j = 0; j < CONTRACT_NODES; ++j) inner_bar[j] = bar[j] * feat[j];
          backward<DEPTH - 1>(tree[c], inner_bar, inner);
          for (int j = 0; j < CONTRACT_NODES; ++j) {
            feat_bar[j] += bar[j] * inner[j];
            sum[j] += feat[j] * inner[j];
          }
        }
      }
  }
};

/// Loads rows [n_rows] of up to CONTRACT_NODES nodes from node `first` of the tile on; the nodes
/// beyond `count` are zero.
template <typename T>
struct ContractRows {
  int64_t n, channels, channel, first;
  int count, lanes;

  MS_INLINE int64_t at(int row, int j) const { return (row * n + first + j) * channels + channel; }
  MS_INLINE void load_row(const T* source, int row, Vec<T> (&vecs)[CONTRACT_NODES]) const {
    for (int j = 0; j < CONTRACT_NODES; ++j)
      vecs[j] = j < count ? load<false>(source + at(row, j), lanes) : Vec<T>{};
  }
  MS_INLINE void store_row(T* target, int row, const Vec<T> (&vecs)[CONTRACT_NODES]) const {
    for (int j = 0; j < count; ++j) store<false>(target + at(row, j), vecs[j], lanes);
  }
};

/// Calls take(rows, coefs) for all nodes [first, last) of the tile, vector after vector of
/// channels. `coefs` are those of the vector, [n_monomials].
template <typename T, typename Take>
MS_INLINE void walk_nodes(const ContractInputs<T>& inputs, int64_t first, int64_t last,
                          Vec<T>* coefs, const Take& take) {
  constexpr int WIDTH = Simd<T>::WIDTH;
  for (int64_t channel = 0; channel < inputs.channels; channel += WIDTH) {
    const int64_t left = inputs.channels - channel;
    ContractRows<T> rows{inputs.tile.last - inputs.tile.first, inputs.channels, channel, first, 0,
                         left < WIDTH ? int(left) : WIDTH};
    int32_t species = -1;
    for (; rows.first < last; rows.first += rows.count) {
      const int32_t* of_node = inputs.species + inputs.tile.first + rows.first;
      if (*of_node != species) {
        species = *of_node;
        const T* source =
            inputs.coefs + int64_t(species) * inputs.n_monomials * inputs.channels + channel;
        for (int k = 0; k < inputs.n_monomials; ++k)
          coefs[k] = load<false>(source + k * inputs.channels, rows.lanes);
      }
      rows.count = 1;
      while (rows.count < CONTRACT_NODES && rows.first + rows.count < last &&
             of_node[rows.count] == species)
        ++rows.count;
      take(rows);
    }
  }
}

template <typename T>
void contract(const ContractInputs<T>& inputs, int64_t first, int64_t last, const T* msg, T* out,
              T* scratch) {
  typedef typename ContractTile<T>::Vecs Vecs;
  Vec<T>* coefs = reinterpret_cast<Vec<T>*>(scratch);
  Vecs* feats = reinterpret_cast<Vecs*>(coefs + inputs.n_monomials);
  const ContractTile<T> tile{inputs.nodes, coefs, feats, nullptr};
  walk_nodes(inputs, first, last, coefs, [&](const ContractRows<T>& rows) {
    for (int m = 0; m < inputs.dim; ++m) rows.load_row(msg, m, feats[m]);
    for (int o = 0; o < inputs.dim_out; ++o) {
      Vecs sum;
      tile.template value<MAX_CORRELATION>(inputs.nodes[o], sum);
      rows.store_row(out, o, sum);
    }
  });
}

template <typename T>
void contract_backward(const ContractInputs<T>& inputs, int64_t first, int64_t last, T* msg,
                       const T* out_bar, T* dot, T* scratch) {
  typedef typename ContractTile<T>::Vecs Vecs;
  Vec<T>* coefs = reinterpret_cast<Vec<T>*>(scratch);
  Vecs* feats = reinterpret_cast<Vecs*>(coefs + inputs.n_monomials);
  Vecs* feats_bar = feats + inputs.dim;
  const ContractTile<T> tile{inputs.nodes, coefs, feats, feats_bar};
  if (dot)
    for (int64_t i = first; i < last; ++i) dot[inputs.tile.first + i] = T(0);
  walk_nodes(inputs, first, last, coefs, [&](const ContractRows<T>& rows) {
    for (int m = 0; m < inputs.dim; ++m) {
      rows.load_row(msg, m, feats[m]);
      for (int j = 0; j < CONTRACT_NODES; ++j) feats_bar[m][j] = Vec<T>{};
    }
    for (int o = 0; o < inputs.dim_out; ++o) {
      Vecs bar, sum;
      rows.load_row(out_bar, o, bar);
      tile.template backward<MAX_CORRELATION>(inputs.nodes[o], bar, sum);
    }
    Vecs product = {};
    for (int m = 0; m < inputs.dim; ++m) {
      for (int j = 0; j < CONTRACT_NODES; ++j) product[j] += feats[m][j] * feats_bar[m][j];
      rows.store_row(msg, m, feats_bar[m]);
    }
    if (dot)
      for (int j = 0; j < rows.count; ++j)
        dot[inputs.tile.first + rows.first + j] += sum_lanes<T>(product[j]);
  });
}

}  // namespace ISA
}  // namespace mace_stream
