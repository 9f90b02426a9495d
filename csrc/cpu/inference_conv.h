// The convolution of a later layer, path by path over the edges of a chunk of receivers, so that
// one path's part of the radial table stays in the cache. Included by the isa_*.cpp files only.

namespace mace_stream {
namespace ISA {

/// Scratch of a chunk.
template <typename T>
struct ConvScratch {
  T *values, *slopes; /* of one path and run [EDGES, padded(channels)] */
  T* attrs;           /* [n_runs, dim_edge, EDGES] */
  T* attrs_bar;       /* likewise */
  T* radial;          /* [n_runs, EDGES] */

  MS_INLINE ConvScratch(const ConvInputs<T>& inputs, const EdgeRuns& runs, T* scratch) {
    const int64_t block = EDGES * padded(inputs.channels);
    const int64_t all_attrs = runs.n_runs * inputs.dim_edge * EDGES;
    values = scratch;
    slopes = values + block;
    attrs = slopes + block;
    attrs_bar = attrs + all_attrs;
    radial = attrs_bar + all_attrs;
  }
};

/// Offset of an output row's numbers of one receiver.
template <typename T>
MS_INLINE int64_t place_of(const ConvInputs<T>& inputs, int32_t row, int64_t receiver) {
  const RowPlace& place = inputs.places[row];
  const int64_t n = inputs.tile.last - inputs.tile.first;
  return (place.base * n + (receiver - inputs.tile.first) * place.n_paths + place.path) *
         inputs.channels;
}

/// One path and one run of edges.
template <typename T>
struct PathRun {
  int count, n_in;
  const T* couplings; /* [n_in, n_out, EDGES] */
  const T* values;    /* [EDGES, stride] */
  int64_t stride;
  const T* feats[EDGES];           /* [channels], of every edge's sender, row 0 */
  int64_t rows_in[MAX_BLOCK_ROWS]; /* from row 0 to the path's rows */
  T* rows_out[MAX_BLOCK_ROWS];     /* [channels], of the receiver */
  bool overwrites;
};

template <int N_OUT, int VECTORS, bool FULL, typename T>
MS_INLINE void conv_tile(const PathRun<T>& run, int64_t channel, int lanes) {
  constexpr int WIDTH = Simd<T>::WIDTH;
  Vec<T> accum[N_OUT][VECTORS] = {};
  for (int e = 0; e < run.count; ++e) {
    Vec<T> weight[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v)
      weight[v] = load<true>(run.values + e * run.stride + channel + v * WIDTH, 0);
    const T* coupling = run.couplings + e;
    for (int i = 0; i < run.n_in; ++i, coupling += N_OUT * EDGES) {
      const T* row = run.feats[e] + run.rows_in[i] + channel;
      Vec<T> value[VECTORS];
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) value[v] = load<FULL>(row + v * WIDTH, lanes) * weight[v];
#pragma GCC unroll 9
      for (int k = 0; k < N_OUT; ++k)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) accum[k][v] += coupling[k * EDGES] * value[v];
    }
  }
#pragma GCC unroll 9
  for (int k = 0; k < N_OUT; ++k)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
      T* row = run.rows_out[k] + channel + v * WIDTH;
      if (!run.overwrites) accum[k][v] += load<FULL>(row, lanes);
      store<FULL>(row, accum[k][v], lanes);
    }
}

template <int N_OUT, typename T>
void conv_path(const PathRun<T>& run, int64_t channels) {
  constexpr int WIDTH = Simd<T>::WIDTH, VECTORS = tile_vectors(N_OUT);
  int64_t channel = 0;
  for (; channel + VECTORS * WIDTH <= channels; channel += VECTORS * WIDTH)
    conv_tile<N_OUT, VECTORS, true>(run, channel, WIDTH);
  for (; channel < channels; channel += WIDTH) {
    const int64_t left = channels - channel;
    conv_tile<N_OUT, 1, false>(run, channel, left < WIDTH ? int(left) : WIDTH);
  }
}

template <typename T>
MS_INLINE void conv_path_of(int n_out, const PathRun<T>& run, int64_t channels) {
  switch (n_out) {
    case 1: return conv_path<1>(run, channels);
    case 3: return conv_path<3>(run, channels);
    case 5: return conv_path<5>(run, channels);
    case 7: return conv_path<7>(run, channels);
    default: return conv_path<9>(run, channels);
  }
}

template <typename T>
MS_INLINE void set_feats(const ConvInputs<T>& inputs, const PathBlock& block, const EdgeRun& edges,
                         PathRun<T>& run) {
  for (int e = 0; e < edges.count; ++e)
    run.feats[e] = inputs.up + inputs.edges.sender[edges.edge + e] * inputs.channels;
  for (int i = 0; i < block.n_in; ++i)
    run.rows_in[i] = block.rows_in[i] * inputs.n_senders * inputs.channels;
}

template <typename T>
MS_INLINE const T* table_of(const ConvInputs<T>& inputs, const PathBlock& block) {
  return inputs.table + int64_t(block.path) * inputs.edges.n_coef * inputs.channels;
}

template <typename T>
MS_INLINE int64_t table_stride(const ConvInputs<T>& inputs) {
  return int64_t(inputs.n_paths) * inputs.edges.n_coef * inputs.channels;
}

template <typename T>
void conv(const ConvInputs<T>& inputs, const EdgeRuns& runs, T* out, T* scratch) {
  alignas(64) T couplings[MAX_BLOCK_ROWS * MAX_BLOCK_ROWS * EDGES];
  const ConvScratch<T> chunk(inputs, runs, scratch);
  const int64_t attrs_size = inputs.dim_edge * EDGES;
  for (int64_t k = 0; k < runs.n_runs; ++k)
    harmonics(inputs.edges, runs.runs[k], norm_of(inputs.edges, runs.runs[k]),
              chunk.attrs + k * attrs_size);
  for (int b = 0; b < inputs.n_blocks; ++b) {
    const PathBlock& block = inputs.blocks[b];
    for (int64_t k = 0; k < runs.n_runs; ++k) {
      const EdgeRun& edges = runs.runs[k];
      radial_values<false>(inputs.edges, edges, table_of(inputs, block), table_stride(inputs),
                           inputs.channels, chunk.values, chunk.slopes);
      make_couplings<false>(block, chunk.attrs + k * attrs_size, couplings);
      PathRun<T> run;
      run.count = edges.count;
      run.n_in = block.n_in;
      run.couplings = couplings;
      run.values = chunk.values;
      run.stride = padded(inputs.channels);
      run.overwrites = edges.first_of_row && !inputs.adds[b];
      set_feats(inputs, block, edges, run);
      for (int i = 0; i < block.n_out; ++i)
        run.rows_out[i] = out + place_of(inputs, block.rows_out[i], edges.receiver);
      conv_path_of(block.n_out, run, inputs.channels);
    }
  }
}

}  // namespace ISA
}  // namespace mace_stream
