#include "plan.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <set>

namespace mace_stream {
namespace {

using Rows = std::vector<int32_t>;

bool dims_are_valid(const ms_conv_dims& dims) {
  const bool positive =
      dims.dim_in > 0 && dims.dim_edge > 0 && dims.dim_out > 0 && dims.n_paths > 0;
  return positive && dims.dim_edge <= MAX_DIM_EDGE && dims.n_terms >= 0 &&
         (dims.is_double == 0 || dims.is_double == 1);
}

bool is_within(const ms_term& term, const ms_conv_dims& dims) {
  return term.in >= 0 && term.in < dims.dim_in && term.edge >= 0 && term.edge < dims.dim_edge &&
         term.path >= 0 && term.path < dims.n_paths && term.out >= 0 && term.out < dims.dim_out;
}

/// Cut rows into pieces of odd size, the largest first. A path between irreps is one piece.
std::vector<Rows> odd_pieces(const std::set<int32_t>& rows) {
  std::vector<Rows> pieces;
  for (auto next = rows.begin(); next != rows.end();) {
    const int left = int(std::distance(next, rows.end()));
    const int size = std::min((left - 1) / 2 * 2 + 1, MAX_BLOCK_ROWS);
    const auto stop = std::next(next, size);
    pieces.emplace_back(next, stop);
    next = stop;
  }
  return pieces;
}

int position(const Rows& rows, int32_t row) {
  const auto found = std::find(rows.begin(), rows.end(), row);
  return found == rows.end() ? -1 : int(found - rows.begin());
}

/// Terms of one path between these rows.
std::vector<BlockTerm> terms_between(const Rows& in, const Rows& out, int path,
                                     const std::vector<ms_term>& terms, const double* values) {
  std::vector<BlockTerm> found;
  for (size_t k = 0; k < terms.size(); ++k) {
    if (terms[k].path != path) continue;
    const int m_in = position(in, terms[k].in), m_out = position(out, terms[k].out);
    if (m_in >= 0 && m_out >= 0) found.push_back({m_in, terms[k].edge, m_out, values[k]});
  }
  return found;
}

PathBlock make_block(const Rows& in, const Rows& out, int path) {
  PathBlock block{};
  block.path = path;
  block.n_in = int32_t(in.size());
  block.n_out = int32_t(out.size());
  std::copy(in.begin(), in.end(), block.rows_in);
  std::copy(out.begin(), out.end(), block.rows_out);
  return block;
}

void add_path(ms_conv_plan& plan, int path, const std::vector<ms_term>& terms,
              const double* values) {
  std::set<int32_t> in, out;
  for (const ms_term& term : terms) {
    if (term.path != path) continue;
    in.insert(term.in);
    out.insert(term.out);
  }

  // A path that couples nothing still owns a column of weights, whose cotangent must be written.

  if (in.empty()) in = out = {0};
  bool first = true;
  for (const Rows& piece_in : odd_pieces(in)) {
    for (const Rows& piece_out : odd_pieces(out)) {
      const auto found = terms_between(piece_in, piece_out, path, terms, values);
      if (found.empty() && !first) continue;
      PathBlock block = make_block(piece_in, piece_out, path);
      block.first_of_path = first;
      block.n_terms = int32_t(found.size());
      plan.blocks.push_back(block);
      plan.terms.insert(plan.terms.end(), found.begin(), found.end());
      first = false;
    }
  }
}

std::unique_ptr<ms_conv_plan> make_plan(const ms_conv_dims& dims, const ms_term* terms,
                                        const double* values) {
  auto plan = std::make_unique<ms_conv_plan>(dims);
  const std::vector<ms_term> all(terms, terms + dims.n_terms);
  for (const ms_term& term : all)
    if (!is_within(term, dims)) return nullptr;
  for (int path = 0; path < dims.n_paths; ++path) add_path(*plan, path, all, values);
  const BlockTerm* next = plan->terms.data();
  for (PathBlock& block : plan->blocks) {
    block.terms = next;
    next += block.n_terms;
  }
  return plan;
}

}  // namespace
}  // namespace mace_stream

ms_conv_plan* ms_conv_create(const ms_conv_dims* dims, const ms_term* terms, const double* values) {
  if (!dims || !mace_stream::dims_are_valid(*dims)) return nullptr;
  if (dims->n_terms > 0 && (!terms || !values)) return nullptr;
  try {
    return mace_stream::make_plan(*dims, terms, values).release();
  } catch (const std::exception&) {  // out of memory; no exception crosses the C face
    return nullptr;
  }
}

void ms_conv_free(ms_conv_plan* plan) { delete plan; }
