// The symmetric contraction: polynomials of the message components of one channel. Included by the
// isa_*.cpp files only.

namespace mace_stream {
namespace ISA {

/// One vector of channels of CONTRACT_NODES nodes of one species. A group of monomials is the
/// product of its shared factors and the sum of coefficient * factor * factor, all degrees alike:
/// missing factors are 1. So loops are long, and few branches are mispredicted.
template <typename T>
struct ContractTile {
  typedef Vec<T> Vecs[CONTRACT_NODES];

  const Monomial* monomials;
  const Vec<T>* coefs; /* [n_monomials] */
  const Vecs* feats;   /* [dim + 1], the last 1 */
  Vecs* feats_bar;     /* [dim + 1] */

  /// out += value of the group.
  MS_INLINE void add_value(const MonomialGroup& group, Vecs& out) const {
    Vecs sum = {};
    for (int32_t k = group.first; k < group.last; ++k) {
      const Vec<T> coef = coefs[monomials[k].number];
      const Vecs &a = feats[monomials[k].factors[0]], &b = feats[monomials[k].factors[1]];
#pragma GCC unroll 8
      for (int j = 0; j < CONTRACT_NODES; ++j) sum[j] += a[j] * coef * b[j];
    }
    const Vecs &a = feats[group.factors[0]], &b = feats[group.factors[1]];
#pragma GCC unroll 8
    for (int j = 0; j < CONTRACT_NODES; ++j) out[j] += a[j] * b[j] * sum[j];
  }

  /// feats_bar += bar * derivative of the group.
  MS_INLINE void add_cotangents(const MonomialGroup& group, const Vecs& bar) const {
    Vecs sum = {}, sum_bar;
    const Vecs &shared_a = feats[group.factors[0]], &shared_b = feats[group.factors[1]];
#pragma GCC unroll 8
    for (int j = 0; j < CONTRACT_NODES; ++j) sum_bar[j] = bar[j] * shared_a[j] * shared_b[j];
    for (int32_t k = group.first; k < group.last; ++k) {
      const Vec<T> coef = coefs[monomials[k].number];
      const Vecs &a = feats[monomials[k].factors[0]], &b = feats[monomials[k].factors[1]];
      Vecs &a_bar = feats_bar[monomials[k].factors[0]], &b_bar = feats_bar[monomials[k].factors[1]];
#pragma GCC unroll 8
      for (int j = 0; j < CONTRACT_NODES; ++j) {
        const Vec<T> own_a = a[j], own_b = b[j], term_bar = coef * sum_bar[j];
        sum[j] += coef * own_a * own_b;
        a_bar[j] += term_bar * own_b;
        b_bar[j] += term_bar * own_a;
      }
    }
    Vecs &a_bar = feats_bar[group.factors[0]], &b_bar = feats_bar[group.factors[1]];
#pragma GCC unroll 8
    for (int j = 0; j < CONTRACT_NODES; ++j) {
      const Vec<T> scaled = bar[j] * sum[j];
      a_bar[j] += scaled * shared_b[j];
      b_bar[j] += scaled * shared_a[j];
    }
  }
};

/// Loads rows [n, channels] of up to CONTRACT_NODES nodes from node `first` of the tile on; the
/// nodes beyond `count` are zero.
template <typename T>
struct ContractRows {
  int64_t n, channels, channel, first;
  int count, lanes;

  MS_INLINE int64_t at(int j) const { return (first + j) * channels + channel; }
  MS_INLINE int64_t start(int row) const { return row * n * channels; }
  MS_INLINE void load_row(const T* row, Vec<T> (&vecs)[CONTRACT_NODES]) const {
    for (int j = 0; j < CONTRACT_NODES; ++j)
      vecs[j] = j < count ? load_lanes(row + at(j), lanes) : Vec<T>{};
  }
  MS_INLINE void store_row(T* row, const Vec<T> (&vecs)[CONTRACT_NODES]) const {
    for (int j = 0; j < count; ++j) store_lanes(row + at(j), vecs[j], lanes);
  }
  /// Fetches the same of the nodes that come next: they are far apart, and used vector by vector.
  MS_INLINE void fetch_next(const T* row) const {
    for (int j = count; j < 2 * count; ++j) __builtin_prefetch(row + at(j));
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
          coefs[k] = load_lanes(source + k * inputs.channels, rows.lanes);
      }
      rows.count = 1;
      while (rows.count < CONTRACT_NODES && rows.first + rows.count < last &&
             of_node[rows.count] == species)
        ++rows.count;
      take(rows);
    }
  }
}

/// Scratch of a thread.
template <typename T>
struct ContractScratch {
  typedef typename ContractTile<T>::Vecs Vecs;
  Vec<T>* coefs;
  Vecs *feats, *feats_bar;

  MS_INLINE ContractScratch(const ContractInputs<T>& inputs, T* scratch) {
    coefs = reinterpret_cast<Vec<T>*>(scratch);
    feats = reinterpret_cast<Vecs*>(coefs + inputs.n_monomials);
    feats_bar = feats + inputs.dim + 1;
    for (int j = 0; j < CONTRACT_NODES; ++j) feats[inputs.dim][j] = Vec<T>{} + T(1);
  }
};

template <typename T>
void contract(const ContractInputs<T>& inputs, int64_t first, int64_t last, const T* const* msg,
              T* out, T* scratch) {
  const ContractScratch<T> own(inputs, scratch);
  const ContractTile<T> tile{inputs.monomials, own.coefs, own.feats, own.feats_bar};
  walk_nodes(inputs, first, last, own.coefs, [&](const ContractRows<T>& rows) {
    for (int m = 0; m < inputs.dim; ++m) rows.load_row(msg[m], own.feats[m]);
    for (int m = 0; m < inputs.dim; ++m) rows.fetch_next(msg[m]);
    int32_t g = 0;
    for (int o = 0; o < inputs.dim_out; ++o) {
      typename ContractTile<T>::Vecs sum = {};
      for (; g < inputs.n_groups && inputs.groups[g].out == o; ++g)
        tile.add_value(inputs.groups[g], sum);
      rows.store_row(out + rows.start(o), sum);
    }
  });
}

template <typename T>
void contract_backward(const ContractInputs<T>& inputs, int64_t first, int64_t last, T* const* msg,
                       const T* out_bar, T* dot, T* scratch) {
  typedef typename ContractTile<T>::Vecs Vecs;
  const ContractScratch<T> own(inputs, scratch);
  const ContractTile<T> tile{inputs.monomials, own.coefs, own.feats, own.feats_bar};
  if (dot)
    for (int64_t i = first; i < last; ++i) dot[inputs.tile.first + i] = T(0);
  walk_nodes(inputs, first, last, own.coefs, [&](const ContractRows<T>& rows) {
    for (int m = 0; m < inputs.dim; ++m) rows.load_row(msg[m], own.feats[m]);
    for (int m = 0; m < inputs.dim; ++m) rows.fetch_next(msg[m]);
    for (int o = 0; o < inputs.dim_out; ++o) rows.fetch_next(out_bar + rows.start(o));
    for (int m = 0; m <= inputs.dim; ++m)
      for (int j = 0; j < CONTRACT_NODES; ++j) own.feats_bar[m][j] = Vec<T>{};
    int32_t g = 0;
    for (int o = 0; o < inputs.dim_out; ++o) {
      Vecs bar;
      rows.load_row(out_bar + rows.start(o), bar);
      for (; g < inputs.n_groups && inputs.groups[g].out == o; ++g)
        tile.add_cotangents(inputs.groups[g], bar);
    }
    Vecs product = {};
    for (int m = 0; m < inputs.dim; ++m) {
      for (int j = 0; j < CONTRACT_NODES; ++j) product[j] += own.feats[m][j] * own.feats_bar[m][j];
      rows.store_row(msg[m], own.feats_bar[m]);
    }
    if (dot)
      for (int j = 0; j < rows.count; ++j)
        dot[inputs.tile.first + rows.first + j] += sum_lanes<T>(product[j]);
  });
}

}  // namespace ISA
}  // namespace mace_stream
