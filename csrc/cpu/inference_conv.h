// The convolution of a later layer, path by path over the edges of a chunk of receivers, so that
// one path's part of the radial table stays in the cache. Included by the isa_*.cpp files only.

namespace mace_stream {
namespace ISA {

/// Scratch of a chunk.
template <typename T>
struct ConvScratch {
  T* radial_values; /* see BackRun */
  T* bars;          /* of one path and receiver, see pack_bars */
  T* attrs;         /* [n_runs, dim_edge, EDGES] */
  T* attrs_bar;     /* [n_runs, EDGES, ATTRS_STRIDE] */
  T* radial;        /* [n_runs, EDGES] */

  MS_INLINE ConvScratch(const ConvInputs<T>& inputs, const EdgeRuns& runs, T* scratch) {
    const int64_t all_attrs = runs.n_runs * inputs.dim_edge * EDGES;
    radial_values = scratch;
    bars = radial_values + 4 * padded(inputs.channels);
    attrs = bars + MAX_BLOCK_ROWS * padded(inputs.channels);
    attrs_bar = attrs + all_attrs;
    radial = attrs_bar + runs.n_runs * EDGES * ATTRS_STRIDE;
  }
};

/// Where an output row's numbers of one receiver start; `out` are blocks of T or const T.
template <typename T, typename Out>
MS_INLINE Out* row_of(const ConvInputs<T>& inputs, Out* const* out, int32_t row, int64_t receiver) {
  const RowPlace& place = inputs.places[row];
  const int64_t n = inputs.tile.last - inputs.tile.first;
  const int64_t node = receiver - inputs.tile.first;
  return out[place.block] + (place.base * n + node * place.n_paths + place.path) * inputs.channels;
}

/// Dense couplings [n_in, n_out, EDGES] of one path; terms are sorted by input, then output row.
template <typename T>
MS_INLINE void dense_couplings(const ConvBlock& block, const T* attrs, T* couplings) {
  constexpr int WIDTH = Simd<T>::WIDTH, VECTORS = EDGES / WIDTH;
  const BlockTerm *term = block.terms, *last = term + block.n_terms;
  for (int i = 0; i < block.n_in; ++i)
    for (int k = 0; k < block.n_out; ++k, couplings += EDGES) {
      Vec<T> sum[VECTORS] = {};
      for (; term < last && term->in == i && term->out == k; ++term)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v)
          sum[v] += T(term->value) * load<true>(attrs + term->edge * EDGES + v * WIDTH, 0);
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; ++v) store<true>(couplings + v * WIDTH, sum[v], 0);
    }
}

/// One path and one run of edges.
template <typename T>
struct PathRun {
  int count, n_in;
  int64_t channels;
  const T* couplings;    /* [n_in, n_out, EDGES] */
  const T* coefs[EDGES]; /* [N_COEF, channels] of the table, for every edge */
  T t[EDGES];
  const T* feats[EDGES];           /* [channels], of every edge's sender, row 0 */
  int64_t rows_in[MAX_BLOCK_ROWS]; /* from row 0 to the path's rows */
};

/// Edges that are added at a time. More would spare loads and stores of the messages, but touch
/// more pages of the table at once.
constexpr int GROUP = 4;

/// Some vectors of the messages of edges first to last - 1: accum [vectors, N_OUT, lanes] +=
/// couplings * weight * feature.
template <int N_COEF, int N_OUT, int VECTORS, bool FULL, typename T>
MS_INLINE void conv_step(const PathRun<T>& run, int first, int last, int64_t channel, int lanes,
                         T* accum) {
  constexpr int WIDTH = Simd<T>::WIDTH;
  Vec<T> weight[VECTORS], sum[N_OUT][VECTORS], slope;
  T* target = accum + channel * N_OUT;
#pragma GCC unroll 9
  for (int k = 0; k < N_OUT; ++k)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v) sum[k][v] = load<true>(target + (v * N_OUT + k) * WIDTH, 0);
  int e = first;
  do {
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v)
      polynomial<N_COEF, false, FULL>(run.coefs[e] + channel + v * WIDTH, run.channels, run.t[e],
                                      lanes, weight[v], slope);
    const T* coupling = run.couplings + e;
    int i = 0;
    do {
      const T* row = run.feats[e] + run.rows_in[i] + channel;
      Vec<T> value[VECTORS];
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) value[v] = load<FULL>(row + v * WIDTH, lanes) * weight[v];
#pragma GCC unroll 9
      for (int k = 0; k < N_OUT; ++k)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; ++v) sum[k][v] += coupling[k * EDGES] * value[v];
      coupling += N_OUT * EDGES;
    } while (++i < run.n_in);
  } while (++e < last);
#pragma GCC unroll 9
  for (int k = 0; k < N_OUT; ++k)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v) store<true>(target + (v * N_OUT + k) * WIDTH, sum[k][v], 0);
}

template <int N_COEF, int N_OUT, typename T>
void conv_path(const PathRun<T>& run, T* accum) {
  constexpr int WIDTH = Simd<T>::WIDTH, VECTORS = REGISTERS >= 32 ? 2 : 1, STEP = VECTORS * WIDTH;
  for (int first = 0; first < run.count; first += GROUP) {
    const int last = first + GROUP < run.count ? first + GROUP : run.count;
    int64_t channel = 0;
    for (; channel + STEP <= run.channels; channel += STEP)
      conv_step<N_COEF, N_OUT, VECTORS, true>(run, first, last, channel, WIDTH, accum);
    for (; channel < run.channels; channel += WIDTH) {
      const int64_t left = run.channels - channel;
      conv_step<N_COEF, N_OUT, 1, false>(run, first, last, channel,
                                         left < WIDTH ? int(left) : WIDTH, accum);
    }
  }
}

template <int N_COEF, typename T>
MS_INLINE void conv_path_of(int n_out, const PathRun<T>& run, T* accum) {
  switch (n_out) {
    case 1: return conv_path<N_COEF, 1>(run, accum);
    case 3: return conv_path<N_COEF, 3>(run, accum);
    case 5: return conv_path<N_COEF, 5>(run, accum);
    case 7: return conv_path<N_COEF, 7>(run, accum);
    default: return conv_path<N_COEF, 9>(run, accum);
  }
}

/// Start of the part of the table that one path needs of a row.
template <typename T>
MS_INLINE const T* table_row(const ConvInputs<T>& inputs, const ConvBlock& block, int64_t row) {
  return inputs.table + (row * inputs.n_paths + block.path) * inputs.edges.n_coef * inputs.channels;
}

/// Sets what a run of edges and a path determine.
template <typename T>
MS_INLINE void start_run(const ConvInputs<T>& inputs, const ConvBlock& block, const EdgeRun& edges,
                         PathRun<T>& run) {
  run.count = edges.count;
  run.n_in = block.n_in;
  run.channels = inputs.channels;
  for (int e = 0; e < edges.count; ++e) {
    run.feats[e] = inputs.up + inputs.edges.sender[edges.edge + e] * inputs.channels;
    run.coefs[e] = table_row(inputs, block, inputs.edges.row[edges.edge + e]);
    run.t[e] = inputs.edges.t[edges.edge + e];
  }
  for (int i = 0; i < block.n_in; ++i)
    run.rows_in[i] = block.rows_in[i] * inputs.n_senders * inputs.channels;
}

/// Calls take(block number, run number, run) for every path, and within it for every run of edges.
template <typename T, typename Take>
MS_INLINE void walk_paths(const ConvInputs<T>& inputs, const EdgeRuns& runs,
                          const ConvScratch<T>& chunk, const Take& take) {
  for (int b = 0; b < inputs.n_blocks; ++b) {
    const ConvBlock& block = inputs.blocks[b];
    for (int64_t k = 0; k < runs.n_runs; ++k) {
      PathRun<T> run;
      start_run(inputs, block, runs.runs[k], run);
      alignas(64) T couplings[MAX_BLOCK_ROWS * MAX_BLOCK_ROWS * EDGES];
      dense_couplings(block, chunk.attrs + k * inputs.dim_edge * EDGES, couplings);
      run.couplings = couplings;
      take(b, k, run);
    }
  }
}

/// Unpacks a receiver's messages of one path.
template <typename T>
MS_INLINE void store_messages(const ConvInputs<T>& inputs, const ConvBlock& block, int64_t receiver,
                              const T* accum, T* const* out) {
  constexpr int WIDTH = Simd<T>::WIDTH;
  for (int k = 0; k < block.n_out; ++k) {
    T* row = row_of(inputs, out, block.rows_out[k], receiver);
    for (int64_t channel = 0; channel < inputs.channels; channel += WIDTH) {
      const int lanes = int(inputs.channels - channel < WIDTH ? inputs.channels - channel : WIDTH);
      Vec<T> sum = load<true>(accum + channel * block.n_out + k * WIDTH, 0);
      if (block.adds) sum += load_lanes(row + channel, lanes);
      store_lanes(row + channel, sum, lanes);
    }
  }
}

template <typename T>
void conv(const ConvInputs<T>& inputs, const EdgeRuns& runs, T* const* out, T* scratch) {
  const ConvScratch<T> chunk(inputs, runs, scratch);
  for (int64_t k = 0; k < runs.n_runs; ++k)
    harmonics(inputs.edges, runs.runs[k], norm_of(inputs.edges, runs.runs[k]),
              chunk.attrs + k * inputs.dim_edge * EDGES);
  walk_paths(inputs, runs, chunk, [&](int b, int64_t k, const PathRun<T>& run) {
    const ConvBlock& block = inputs.blocks[b];
    const int64_t receiver = runs.runs[k].receiver;
    if (runs.runs[k].starts_sum)
      for (int64_t i = 0; i < block.n_out * padded(inputs.channels); ++i) chunk.bars[i] = T(0);
    with_degree(inputs.edges.n_coef,
                [&](auto n_coef) { conv_path_of<n_coef.value>(block.n_out, run, chunk.bars); });
    if (k + 1 == runs.n_runs || runs.runs[k + 1].starts_sum)
      store_messages(inputs, block, receiver, chunk.bars, out);
  });
}

}  // namespace ISA
}  // namespace mace_stream
