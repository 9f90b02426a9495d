// Shares the rows of a pass out to threads, chunk by chunk, and adds what densities contribute.

#include "inference_passes.h"

#include <algorithm>
#include <thread>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace mace_stream {
namespace cpu {
namespace {

int max_threads() {
#if defined(_OPENMP)
  return omp_get_max_threads();
#else
  return 1;
#endif
}

int this_thread() {
#if defined(_OPENMP)
  return omp_get_thread_num();
#else
  return 0;
#endif
}

/// Receivers of a chunk: enough that a path's part of the radial table is used again and again
/// before the next path's takes its place; equal shares, and some for each thread, so that all
/// finish together.
int64_t chunk_size(int64_t n_rows) {
  constexpr int64_t MOST = 64, LEAST_SHARES = 4;
  const int64_t n_shares = std::max(LEAST_SHARES, (n_rows - 1) / (MOST * max_threads()) + 1);
  const int64_t n_chunks = n_shares * max_threads();
  return std::max<int64_t>(1, (n_rows + n_chunks - 1) / n_chunks);
}

// ---- runs of edges ----

/// Cuts the edges of receivers [first, last) into runs, of one sender species each if `species`.
void cut_runs(const ms_nodes& nodes, const ms_edges& edges, int64_t first, int64_t last,
              const int32_t* species, std::vector<EdgeRun>& runs) {
  runs.clear();
  for (int64_t node = first; node < last; ++node) {
    const int64_t start = nodes.first[node], stop = start + edges.count[node];
    for (int64_t edge = start; edge < stop;) {
      EdgeRun run{node, edge, 0, edge == start, 0};
      if (species) {
        run.sender_species = species[edges.sender[edge]];
        run.starts_sum = edge == start || run.sender_species != runs.back().sender_species;
      }
      while (edge < stop && run.count < EDGES &&
             (!species || species[edges.sender[edge]] == run.sender_species)) {
        ++run.count;
        ++edge;
      }
      runs.push_back(run);
    }
  }
}

/// Bound of the runs of any chunk.
int64_t most_runs(const ms_edges& edges, ms_tile tile, int64_t size, bool by_species) {
  int64_t most = 0;
  for (int64_t first = tile.first; first < tile.last; first += size) {
    int64_t runs = 0;
    for (int64_t node = first; node < std::min(first + size, tile.last); ++node)
      runs += by_species ? edges.count[node] : (edges.count[node] + EDGES - 1) / EDGES;
    most = std::max(most, runs);
  }
  return most;
}

/// Calls take(first, last, runs, scratch) for chunks that cover a tile. scratch_size(n_runs) is in
/// numbers of type T.
template <typename T, typename Size, typename Take>
void walk_chunks(ms_inference& inference, const ms_nodes& nodes, const ms_edges& edges,
                 ms_tile tile, bool by_species, const Size& scratch_size, const Take& take) {
  const int64_t size = chunk_size(tile.last - tile.first);
  const int64_t n_runs = most_runs(edges, tile, size, by_species);
  if (inference.threads.size() < size_t(max_threads())) inference.threads.resize(max_threads());
  for (ThreadScratch& thread : inference.threads)
    thread.reserve(n_runs, scratch_size(n_runs) * int64_t(sizeof(T)));
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t first = tile.first; first < tile.last; first += size) {
    const int64_t last = std::min(first + size, tile.last);
    ThreadScratch& thread = inference.threads[this_thread()];
    cut_runs(nodes, edges, first, last, by_species ? nodes.species : nullptr, thread.runs);
    const EdgeRuns runs{thread.runs.data(), int64_t(thread.runs.size())};
    take(first, last, runs, static_cast<T*>(thread.aligned()));
  }
}

template <typename T>
EdgeInputs<T> edge_inputs(const ms_inference& inference, const ms_edges& edges, const T* norm) {
  return {edges.sender,
          edges.row,
          static_cast<const T*>(edges.t),
          static_cast<const T*>(edges.dir),
          static_cast<T*>(edges.grad),
          inference.sizes.l_max,
          inference.sizes.n_coef,
          inference.harmonic_norms.data(),
          inference.inverse_step(),
          norm};
}

// ---- density ----

/// norm = 1 / (1 + sum of densities), for receivers [first, last).
template <typename T>
void set_norms(const EdgeInputs<T>& inputs, const Radial<T>& radial, const ms_nodes& nodes,
               const ms_edges& edges, int64_t first, int64_t last) {
  for (int64_t node = first; node < last; ++node) {
    double sum = 1;
    for (int64_t k = 0; k < edges.count[node]; ++k) {
      const int64_t edge = nodes.first[node] + k;
      const T* coefs = radial.density + int64_t(inputs.row[edge]) * inputs.n_coef;
      T value = coefs[inputs.n_coef - 1];
      for (int c = inputs.n_coef - 2; c >= 0; --c) value = value * inputs.t[edge] + coefs[c];
      sum += value;
    }
    radial.norm[node] = T(1 / sum);
  }
}

/// edges.grad += dE/d(density) times the density's slope. All that a receiver sums is linear in its
/// norm, so that dE/d(density) = - norm * dot.
template <typename T>
void add_density_gradient(const EdgeInputs<T>& inputs, const Radial<T>& radial,
                          const EdgeRuns& runs) {
  for (int64_t k = 0; k < runs.n_runs; ++k) {
    const EdgeRun& run = runs.runs[k];
    const T bar = -radial.norm[run.receiver] * radial.dot[run.receiver];
    for (int64_t edge = run.edge; edge < run.edge + run.count; ++edge) {
      const T* coefs = radial.density + int64_t(inputs.row[edge]) * inputs.n_coef;
      T slope = 0;
      for (int c = inputs.n_coef - 1; c > 0; --c) slope = slope * inputs.t[edge] + T(c) * coefs[c];
      for (int axis = 0; axis < 3; ++axis)
        inputs.grad[3 * edge + axis] +=
            bar * slope * T(inputs.inverse_step) * inputs.dir[4 * edge + axis];
    }
  }
}

}  // namespace

// ---- first layer ----

namespace {

template <typename T>
ScatterInputs<T> scatter_inputs(const ms_inference& inference, const ms_nodes& nodes,
                                const ms_edges& edges, const Radial<T>& radial) {
  return {edge_inputs(inference, edges, static_cast<const T*>(radial.norm)), nodes.n_nodes,
          inference.sizes.n_hidden, inference.sizes.n_species, radial.table};
}

}  // namespace

template <typename T>
void scatter(ms_inference& inference, const ms_nodes& nodes, const ms_edges& edges,
             const Radial<T>& radial, T* out) {
  const auto inputs = scatter_inputs(inference, nodes, edges, radial);
  const int64_t width = inputs.n_species * inputs.n_hidden;
  walk_chunks<T>(
      inference, nodes, edges, {0, nodes.n_nodes}, true,
      [&](int64_t) { return scatter_scratch(inputs.n_hidden); },
      [&](int64_t first, int64_t last, const EdgeRuns& runs, T* scratch) {
        if (radial.density) set_norms(inputs.edges, radial, nodes, edges, first, last);
        for (size_t m = 0; m < inference.harmonic_norms.size(); ++m) {
          T* row = out + int64_t(m) * nodes.n_nodes * width;
          std::fill(row + first * width, row + last * width, T(0));
        }
        best_inference_kernels<T>().scatter(inputs, runs, out, scratch);
      });
}

template <typename T>
void scatter_backward(ms_inference& inference, const ms_nodes& nodes, const ms_edges& edges,
                      const Radial<T>& radial, const T* out_bar) {
  const auto inputs = scatter_inputs(inference, nodes, edges, radial);
  walk_chunks<T>(
      inference, nodes, edges, {0, nodes.n_nodes}, true,
      [&](int64_t) { return scatter_scratch(inputs.n_hidden); },
      [&](int64_t, int64_t, const EdgeRuns& runs, T* scratch) {
        best_inference_kernels<T>().scatter_backward(inputs, runs, out_bar, scratch);
        if (radial.density) add_density_gradient(inputs.edges, radial, runs);
      });
}

// ---- convolution ----

namespace {

template <typename T>
ConvInputs<T> conv_inputs(const ms_inference& inference, int32_t layer, ms_tile tile,
                          const ms_nodes& nodes, const ms_edges& edges, const T* up,
                          const Radial<T>& radial) {
  const ConvTables& tables = inference.layers[layer].conv;
  return {edge_inputs(inference, edges, static_cast<const T*>(radial.norm)),
          tables.blocks.data(),
          int32_t(tables.blocks.size()),
          tables.plan->dims.n_paths,
          tables.plan->dims.dim_edge,
          tables.places.data(),
          tables.channels,
          nodes.n_senders,
          tile,
          up,
          radial.table};
}

/// Zeroes the rows of a receiver that no block overwrites: all without edges.
template <typename T>
void zero_rows(const ConvTables& tables, const ConvInputs<T>& inputs, int64_t receiver, bool all,
               T* const* out) {
  const int64_t n = inputs.tile.last - inputs.tile.first;
  const size_t n_rows = all ? tables.places.size() : tables.zeroed_rows.size();
  for (size_t k = 0; k < n_rows; ++k) {
    const RowPlace& place = tables.places[all ? k : size_t(tables.zeroed_rows[k])];
    const int64_t node = receiver - inputs.tile.first;
    T* row =
        out[place.block] + (place.base * n + node * place.n_paths + place.path) * inputs.channels;
    std::fill(row, row + inputs.channels, T(0));
  }
}

SenderLocks locks_of(ms_inference& inference) {
  const int64_t mask = int64_t(inference.locks.size()) - 1;
  return {max_threads() > 1 ? inference.locks.data() : nullptr, mask,
          [] { std::this_thread::yield(); }};
}

}  // namespace

template <typename T>
void conv(ms_inference& inference, int32_t layer, ms_tile tile, const ms_nodes& nodes,
          const ms_edges& edges, const T* up, const Radial<T>& radial, T* const* out) {
  const auto inputs = conv_inputs(inference, layer, tile, nodes, edges, up, radial);
  const ConvTables& tables = inference.layers[layer].conv;
  walk_chunks<T>(
      inference, nodes, edges, tile, false,
      [&](int64_t n_runs) { return conv_scratch(inputs.channels, inputs.dim_edge, n_runs); },
      [&](int64_t first, int64_t last, const EdgeRuns& runs, T* scratch) {
        if (radial.density) set_norms(inputs.edges, radial, nodes, edges, first, last);
        for (int64_t node = first; node < last; ++node)
          zero_rows(tables, inputs, node, edges.count[node] == 0, out);
        best_inference_kernels<T>().conv(inputs, runs, out, scratch);
      });
}

template <typename T>
void conv_backward(ms_inference& inference, int32_t layer, ms_tile tile, const ms_nodes& nodes,
                   const ms_edges& edges, const T* up, const Radial<T>& radial,
                   const T* const* out_bar, T* up_bar) {
  const auto inputs = conv_inputs(inference, layer, tile, nodes, edges, up, radial);
  const SenderLocks locks = locks_of(inference);
  walk_chunks<T>(
      inference, nodes, edges, tile, false,
      [&](int64_t n_runs) { return conv_scratch(inputs.channels, inputs.dim_edge, n_runs); },
      [&](int64_t, int64_t, const EdgeRuns& runs, T* scratch) {
        best_inference_kernels<T>().conv_backward(inputs, runs, out_bar, up_bar, locks, scratch);
        if (radial.density) add_density_gradient(inputs.edges, radial, runs);
      });
}

// ---- contraction ----

namespace {

template <typename T>
ContractInputs<T> contract_inputs(const ms_inference& inference, int32_t layer, ms_tile tile,
                                  const int32_t* species, const T* coefs) {
  const ContractTables& tables = inference.layers[layer].contract;
  return {tables.groups.data(),
          tables.monomials.data(),
          int32_t(tables.groups.size()),
          int32_t(tables.monomials.size()),
          tables.dim,
          tables.dim_out,
          inference.sizes.channels,
          tile,
          species,
          coefs};
}

/// Calls take(first, last, scratch) for shares of the tile's nodes, which count from 0.
template <typename T, typename Take>
void share_nodes(ms_inference& inference, const ContractInputs<T>& inputs, const Take& take) {
  const int64_t n = inputs.tile.last - inputs.tile.first;
  if (inference.threads.size() < size_t(max_threads())) inference.threads.resize(max_threads());
  for (ThreadScratch& thread : inference.threads)
    thread.reserve(0, contract_scratch(inputs.n_monomials, inputs.dim) * int64_t(sizeof(T)));
  const int64_t n_shares = max_threads();
#pragma omp parallel for schedule(static, 1)
  for (int64_t share = 0; share < n_shares; ++share)
    take(n * share / n_shares, n * (share + 1) / n_shares,
         static_cast<T*>(inference.threads[this_thread()].aligned()));
}

}  // namespace

template <typename T>
void contract(ms_inference& inference, int32_t layer, ms_tile tile, const int32_t* species,
              const T* coefs, const T* const* msg, T* out) {
  const auto inputs = contract_inputs(inference, layer, tile, species, coefs);
  share_nodes(inference, inputs, [&](int64_t first, int64_t last, T* scratch) {
    best_inference_kernels<T>().contract(inputs, first, last, msg, out, scratch);
  });
}

template <typename T>
void contract_backward(ms_inference& inference, int32_t layer, ms_tile tile, const int32_t* species,
                       const T* coefs, T* const* msg, const T* out_bar, T* dot) {
  const auto inputs = contract_inputs(inference, layer, tile, species, coefs);
  share_nodes(inference, inputs, [&](int64_t first, int64_t last, T* scratch) {
    best_inference_kernels<T>().contract_backward(inputs, first, last, msg, out_bar, dot, scratch);
  });
}

#define INSTANTIATE(T)                                                                            \
  template void scatter(ms_inference&, const ms_nodes&, const ms_edges&, const Radial<T>&, T*);   \
  template void scatter_backward(ms_inference&, const ms_nodes&, const ms_edges&,                 \
                                 const Radial<T>&, const T*);                                     \
  template void conv(ms_inference&, int32_t, ms_tile, const ms_nodes&, const ms_edges&, const T*, \
                     const Radial<T>&, T* const*);                                                \
  template void conv_backward(ms_inference&, int32_t, ms_tile, const ms_nodes&, const ms_edges&,  \
                              const T*, const Radial<T>&, const T* const*, T*);                   \
  template void contract(ms_inference&, int32_t, ms_tile, const int32_t*, const T*,               \
                         const T* const*, T*);                                                    \
  template void contract_backward(ms_inference&, int32_t, ms_tile, const int32_t*, const T*,      \
                                  T* const*, const T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace cpu
}  // namespace mace_stream
