// Cotangents of the convolution: dE/d(edge_vec) of its edges, and the senders' features.
// Included by the isa_*.cpp files only.

namespace mace_stream {
namespace ISA {

/// One edge, one path, one of the path's input rows.
template <typename T>
struct ConvEdgeRow {
  int64_t channels;
  const T *values, *slopes, *feats; /* [channels] */
  const T* const* bars;             /* [n_out][channels] cotangents of the receiver's rows */
  const T* couplings;               /* [n_out, EDGES], at this edge, times the norm */
  T* couplings_bar;                 /* [n_out, EDGES], at this edge, not times the norm */
  T* radial;
  T* feats_bar; /* [channels] */
};

template <int N_OUT, bool NODES, bool FULL, typename T>
MS_INLINE void conv_edge_step(const ConvEdgeRow<T>& row, const T (&coupling)[N_OUT],
                              int64_t channel, int lanes, Vec<T> (&bars)[N_OUT], Vec<T>& along) {
  const Vec<T> feat = load<FULL>(row.feats + channel, lanes);
  const Vec<T> value = load<true>(row.values + channel, 0);
  const Vec<T> weighted = value * feat;
  Vec<T> coupled = {};
#pragma GCC unroll 9
  for (int k = 0; k < N_OUT; ++k) {
    const Vec<T> bar = load<FULL>(row.bars[k] + channel, lanes);
    coupled += coupling[k] * bar;
    bars[k] += weighted * bar;
  }
  along += coupled * feat * load<true>(row.slopes + channel, 0);
  if (NODES) {
    T* target = row.feats_bar + channel;
    store<FULL>(target, load<FULL>(target, lanes) + value * coupled, lanes);
  }
}

template <int N_OUT, bool NODES, typename T>
MS_INLINE void conv_edge_row(const ConvEdgeRow<T>& row) {
  constexpr int WIDTH = Simd<T>::WIDTH;
  T coupling[N_OUT];
  Vec<T> bars[N_OUT] = {}, along = {};
#pragma GCC unroll 9
  for (int k = 0; k < N_OUT; ++k) coupling[k] = row.couplings[k * EDGES];
  int64_t channel = 0;
  for (; channel + WIDTH <= row.channels; channel += WIDTH)
    conv_edge_step<N_OUT, NODES, true>(row, coupling, channel, WIDTH, bars, along);
  if (channel < row.channels)
    conv_edge_step<N_OUT, NODES, false>(row, coupling, channel, int(row.channels - channel), bars,
                                        along);
#pragma GCC unroll 9
  for (int k = 0; k < N_OUT; ++k) row.couplings_bar[k * EDGES] = sum_lanes<T>(bars[k]);
  *row.radial += sum_lanes<T>(along);
}

/// What a thread holds while it adds to a sender's row.
MS_INLINE void acquire(const SenderLocks& locks, int64_t sender) {
  if (!locks.locks) return;
  uint8_t* lock = locks.locks + (sender & locks.mask);
  while (__atomic_exchange_n(lock, uint8_t(1), __ATOMIC_ACQUIRE))
    while (__atomic_load_n(lock, __ATOMIC_RELAXED)) locks.wait();
}

MS_INLINE void release(const SenderLocks& locks, int64_t sender) {
  if (!locks.locks) return;
  __atomic_store_n(locks.locks + (sender & locks.mask), uint8_t(0), __ATOMIC_RELEASE);
}

/// One path and one run of edges.
template <typename T>
struct PathRunBack {
  PathRun<T> run;
  const int32_t* sender; /* [count] */
  const T* slopes;       /* [EDGES, stride] */
  int64_t channels;
  const T* bars[MAX_BLOCK_ROWS];
  T* couplings_bar; /* [n_in, n_out, EDGES] */
  T* radial;        /* [EDGES] */
  T* up_bar;        /* or null */
  const SenderLocks* locks;
};

template <int N_OUT, bool NODES, typename T>
void conv_path_back(const PathRunBack<T>& back) {
  const PathRun<T>& run = back.run;
  for (int e = 0; e < run.count; ++e) {
    const int64_t sender = back.sender[e];
    if (NODES) acquire(*back.locks, sender);
    for (int i = 0; i < run.n_in; ++i) {
      ConvEdgeRow<T> row;
      row.channels = back.channels;
      row.values = run.values + e * run.stride;
      row.slopes = back.slopes + e * run.stride;
      row.feats = run.feats[e] + run.rows_in[i];
      row.bars = back.bars;
      row.couplings = run.couplings + i * N_OUT * EDGES + e;
      row.couplings_bar = back.couplings_bar + i * N_OUT * EDGES + e;
      row.radial = back.radial + e;
      row.feats_bar = NODES ? back.up_bar + sender * back.channels + run.rows_in[i] : nullptr;
      conv_edge_row<N_OUT, NODES>(row);
    }
    if (NODES) release(*back.locks, sender);
  }
}

template <bool NODES, typename T>
MS_INLINE void conv_path_back_of(int n_out, const PathRunBack<T>& back) {
  switch (n_out) {
    case 1: return conv_path_back<1, NODES>(back);
    case 3: return conv_path_back<3, NODES>(back);
    case 5: return conv_path_back<5, NODES>(back);
    case 7: return conv_path_back<7, NODES>(back);
    default: return conv_path_back<9, NODES>(back);
  }
}

/// attrs_bar [dim_edge, EDGES] += scale * couplings_bar, contracted with the terms.
template <typename T>
MS_INLINE void add_attrs_bar(const PathBlock& block, const T* __restrict__ couplings_bar, T scale,
                             T* __restrict__ attrs_bar) {
  for (int k = 0; k < block.n_terms; ++k) {
    const BlockTerm& term = block.terms[k];
    const T value = T(term.value) * scale;
    const T* source = couplings_bar + (term.in * block.n_out + term.out) * EDGES;
    T* target = attrs_bar + term.edge * EDGES;
    for (int e = 0; e < EDGES; ++e) target[e] += value * source[e];
  }
}

template <typename T>
void conv_backward(const ConvInputs<T>& inputs, const EdgeRuns& runs, const T* out_bar, T* up_bar,
                   const SenderLocks& locks, T* scratch) {
  alignas(64) T couplings[MAX_BLOCK_ROWS * MAX_BLOCK_ROWS * EDGES];
  alignas(64) T couplings_bar[MAX_BLOCK_ROWS * MAX_BLOCK_ROWS * EDGES];
  const ConvScratch<T> chunk(inputs, runs, scratch);
  const int64_t attrs_size = inputs.dim_edge * EDGES;
  for (int i = 0; i < MAX_BLOCK_ROWS * MAX_BLOCK_ROWS * EDGES; ++i) couplings_bar[i] = T(0);
  for (int64_t i = 0; i < runs.n_runs * attrs_size; ++i) chunk.attrs_bar[i] = T(0);
  for (int64_t i = 0; i < runs.n_runs * EDGES; ++i) chunk.radial[i] = T(0);
  for (int64_t k = 0; k < runs.n_runs; ++k)
    harmonics(inputs.edges, runs.runs[k], norm_of(inputs.edges, runs.runs[k]),
              chunk.attrs + k * attrs_size);
  for (int b = 0; b < inputs.n_blocks; ++b) {
    const PathBlock& block = inputs.blocks[b];
    for (int64_t k = 0; k < runs.n_runs; ++k) {
      const EdgeRun& edges = runs.runs[k];
      radial_values<true>(inputs.edges, edges, table_of(inputs, block), table_stride(inputs),
                          inputs.channels, chunk.values, chunk.slopes);
      make_couplings<false>(block, chunk.attrs + k * attrs_size, couplings);
      PathRunBack<T> back;
      back.run.count = edges.count;
      back.run.n_in = block.n_in;
      back.run.couplings = couplings;
      back.run.values = chunk.values;
      back.run.stride = padded(inputs.channels);
      set_feats(inputs, block, edges, back.run);
      back.sender = inputs.edges.sender + edges.edge;
      back.slopes = chunk.slopes;
      back.channels = inputs.channels;
      for (int i = 0; i < block.n_out; ++i)
        back.bars[i] = out_bar + place_of(inputs, block.rows_out[i], edges.receiver);
      back.couplings_bar = couplings_bar;
      back.radial = chunk.radial + k * EDGES;
      back.up_bar = up_bar;
      back.locks = &locks;
      if (up_bar)
        conv_path_back_of<true>(block.n_out, back);
      else
        conv_path_back_of<false>(block.n_out, back);
      add_attrs_bar(block, couplings_bar, norm_of(inputs.edges, edges),
                    chunk.attrs_bar + k * attrs_size);
    }
  }
  for (int64_t k = 0; k < runs.n_runs; ++k)
    add_edge_gradients(inputs.edges, runs.runs[k], chunk.attrs_bar + k * attrs_size,
                       chunk.radial + k * EDGES, T(1));
}

}  // namespace ISA
}  // namespace mace_stream
