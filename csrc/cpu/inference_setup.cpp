#include "inference_setup.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <numeric>
#include <stdexcept>

namespace mace_stream {

void ThreadScratch::reserve(int64_t n_runs, int64_t n_bytes) {
  runs.reserve(size_t(n_runs));
  if (int64_t(bytes.size()) < n_bytes + 64) bytes.resize(size_t(n_bytes + 64));
}

void* ThreadScratch::aligned() {
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  return reinterpret_cast<void*>((address + 63) / 64 * 64);
}

namespace {

/// Senders share locks beyond this number.
constexpr int64_t LOCKS = 1 << 14;

void require(bool condition) {
  if (!condition) throw std::invalid_argument("tables");
}

void check_sizes(const ms_inference_sizes& sizes) {
  require(sizes.is_double == 0 || sizes.is_double == 1);
  require(sizes.n_species > 0 && sizes.l_max >= 0 && sizes.l_max <= MAX_L);
  require(sizes.n_coef == 4 || sizes.n_coef == 6 || sizes.n_coef == 8);
  require(sizes.channels > 0 && sizes.n_hidden > 0 && sizes.n_knots > 0 && sizes.n_layers >= 0);
  require(sizes.r_0 >= 0 && sizes.r_max > sizes.r_0);
}

/// Norms of couplings/harmonics.py: sqrt((2 l + 1) (l - m)! / (l + m)!), twice that square for m >
/// 0.
std::vector<double> harmonic_norms(int l_max) {
  std::vector<double> norms;
  for (int l = 0; l <= l_max; ++l)
    for (int m = -l; m <= l; ++m) {
      double square = (2 * l + 1) * (m == 0 ? 1 : 2);
      for (int k = l - std::abs(m) + 1; k <= l + std::abs(m); ++k) square /= k;
      norms.push_back(std::sqrt(square));
    }
  return norms;
}

std::vector<RowPlace> row_places(const ms_layer& layer) {
  std::vector<RowPlace> places;
  for (int b = 0; b < layer.n_blocks; ++b) {
    const ms_output_block& block = layer.blocks[b];
    require(block.start == int64_t(places.size()) && block.dim > 0 && block.n_paths > 0);
    for (int m = 0; m < block.dim; ++m)
      for (int path = 0; path < block.n_paths; ++path)
        places.push_back({int64_t(m) * block.n_paths, b, block.n_paths, path});
  }
  require(int64_t(places.size()) == layer.conv.dim_out);
  return places;
}

/// Which blocks add to rows that another one writes as well, and the rows to be zero before that.
void set_writers(ConvTables& tables) {
  std::vector<int> writers(tables.places.size(), 0);
  for (const ConvBlock& block : tables.blocks)
    for (int i = 0; i < block.n_out; ++i) ++writers[block.rows_out[i]];
  for (ConvBlock& block : tables.blocks) {
    block.adds = std::any_of(block.rows_out, block.rows_out + block.n_out,
                             [&](int32_t row) { return writers[row] > 1; });
    if (block.adds)
      for (int i = 0; i < block.n_out; ++i) writers[block.rows_out[i]] = 2;
  }
  for (size_t row = 0; row < writers.size(); ++row)
    if (writers[row] != 1) tables.zeroed_rows.push_back(int32_t(row));
}

/// The blocks that couple something.
void copy_blocks(const ms_conv_plan& plan, ConvTables& tables) {
  tables.terms = plan.terms;
  for (const PathBlock& path : plan.blocks) {
    if (path.n_terms == 0) continue;
    const auto first = tables.terms.begin() + (path.terms - plan.terms.data());
    const auto last = first + path.n_terms;
    std::sort(first, last, [](const BlockTerm& a, const BlockTerm& b) {
      return a.in != b.in ? a.in < b.in : a.out < b.out;
    });
    const auto edges = std::minmax_element(
        first, last, [](const BlockTerm& a, const BlockTerm& b) { return a.edge < b.edge; });
    ConvBlock block{path, edges.first->edge, edges.second->edge - edges.first->edge + 1, false};
    require(block.n_edge <= HARMONICS_AT_ONCE);
    block.terms = &*first;
    tables.blocks.push_back(block);
  }
}

ConvTables conv_tables(const ms_layer& layer, int l_max) {
  ConvTables tables;
  if (layer.conv.n_paths == 0) return tables;
  tables.channels = layer.conv_channels;
  require(layer.conv_channels > 0 && layer.conv.dim_edge == (l_max + 1) * (l_max + 1));
  tables.plan.reset(ms_conv_create(&layer.conv, layer.terms, layer.values));
  require(tables.plan != nullptr);
  copy_blocks(*tables.plan, tables);
  tables.places = row_places(layer);
  tables.n_output_blocks = layer.n_blocks;
  set_writers(tables);
  return tables;
}

/// A monomial's output row, the factors that it shares with its group, and the others.
struct Split {
  int32_t out;
  std::array<int32_t, 2> shared, own;
  int32_t number;

  std::array<int32_t, 3> group() const { return {out, shared[0], shared[1]}; }
};

/// Rows that are not there become `one`. The first two of four factors are shared, of three only
/// the first, as leading factors repeat most.
Split split_monomial(const int32_t* row, int32_t correlation, int32_t one, int32_t number) {
  std::array<int32_t, MAX_CORRELATION> factors;
  factors.fill(one);
  std::copy(row + 1, row + 1 + correlation, factors.begin());
  std::replace(factors.begin(), factors.end(), -1, one);
  std::sort(factors.begin(), factors.end());
  const auto [a, b, c, d] = factors;
  if (d != one) return {row[0], {a, b}, {c, d}, number};
  if (c != one) return {row[0], {a, one}, {b, c}, number};
  return {row[0], {one, one}, {a, b}, number};
}

ContractTables contract_tables(const ms_layer& layer) {
  require(layer.n_monomials >= 0 && layer.dim > 0 && layer.dim_out > 0);
  require(layer.correlation >= 1 && layer.correlation <= MAX_CORRELATION);
  std::vector<Split> splits;
  for (int32_t k = 0; k < layer.n_monomials; ++k) {
    const int32_t* row = layer.monomials + int64_t(k) * (1 + layer.correlation);
    require(row[0] >= 0 && row[0] < layer.dim_out);
    for (int f = 1; f <= layer.correlation; ++f) require(row[f] >= -1 && row[f] < layer.dim);
    splits.push_back(split_monomial(row, layer.correlation, layer.dim, k));
  }
  std::stable_sort(splits.begin(), splits.end(),
                   [](const Split& a, const Split& b) { return a.group() < b.group(); });
  ContractTables tables{{}, {}, layer.dim, layer.dim_out};
  for (const Split& split : splits) {
    const auto next = int32_t(tables.monomials.size());
    const bool is_new = next == 0 || split.group() != splits[next - 1].group();
    if (is_new)
      tables.groups.push_back({split.out, {split.shared[0], split.shared[1]}, next, next});
    tables.monomials.push_back({split.number, {split.own[0], split.own[1]}});
    ++tables.groups.back().last;
  }
  return tables;
}

std::unique_ptr<RepulsionTables> repulsion_tables(const ms_repulsion& repulsion, int n_species) {
  const int64_t size = int64_t(n_species) * n_species;
  auto tables = std::make_unique<RepulsionTables>();
  tables->charge.assign(repulsion.charge, repulsion.charge + size);
  tables->inverse_length.assign(repulsion.inverse_length, repulsion.inverse_length + size);
  tables->bond.assign(repulsion.bond, repulsion.bond + size);
  tables->formula = repulsion;
  return tables;
}

std::unique_ptr<ms_inference> make_inference(const ms_inference_sizes& sizes,
                                             const ms_layer* layers,
                                             const ms_repulsion* repulsion) {
  check_sizes(sizes);
  auto inference = std::make_unique<ms_inference>();
  inference->sizes = sizes;
  inference->harmonic_norms = harmonic_norms(sizes.l_max);
  for (int32_t layer = 0; layer < sizes.n_layers; ++layer)
    inference->layers.push_back(
        {conv_tables(layers[layer], sizes.l_max), contract_tables(layers[layer])});
  if (repulsion) inference->repulsion = repulsion_tables(*repulsion, sizes.n_species);
  inference->locks.assign(LOCKS, 0);
  return inference;
}

}  // namespace
}  // namespace mace_stream

ms_inference* ms_inference_create(const ms_inference_sizes* sizes, const ms_layer* layers,
                                  const ms_repulsion* repulsion) {
  if (!sizes || (sizes->n_layers > 0 && !layers)) return nullptr;
  try {
    return mace_stream::make_inference(*sizes, layers, repulsion).release();
  } catch (const std::exception&) {  // inconsistent, or out of memory; none crosses the C face
    return nullptr;
  }
}

void ms_inference_free(ms_inference* inference) { delete inference; }
