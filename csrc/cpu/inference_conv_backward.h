// Cotangents of the convolution: dE/d(edge_vec) of its edges, and the senders' features. Included
// by the isa_*.cpp files only.

namespace mace_stream {
namespace ISA {

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

/// Places for the sums over channels of one edge and input row: one per output row, and one for the
/// radial part.
constexpr int SUMS = 16;

/// One path and one run of edges.
template <typename T>
struct BackRun {
  T* radial;             /* values, then slopes [2, padded(channels)] of this edge and the
                            next */
  const T* bars;         /* [vectors of channels, n_out, lanes] of the receiver, times
                            its norm */
  const int32_t* sender; /* [count] */
  T* up_bar;             /* or null */
  T* sums;               /* [EDGES, n_in, SUMS] */
  const SenderLocks* locks;
};

/// One edge and one input row.
template <typename T>
struct BackRow {
  const T *radial, *feats, *bars;
  int64_t slopes; /* from value to slope */
  T* feats_bar;
  const T* next_feats; /* of the next edge */
  const T* next_feats_bar;
};

template <int N_OUT, bool NODES, bool FULL, typename T>
MS_INLINE void back_step(const BackRow<T>& row, const T (&coupling)[N_OUT], int64_t channel,
                         int lanes, Vec<T> (&sums)[N_OUT + 1]) {
  Vec<T> feat = load<FULL>(row.feats + channel, lanes);
  MS_IN_REGISTER(feat);
  __builtin_prefetch(row.next_feats + channel);
  if (NODES) __builtin_prefetch(row.next_feats_bar + channel, 1);
  const Vec<T> value = load<true>(row.radial + channel, 0);
  const Vec<T> weighted = value * feat;
  Vec<T> coupled = {};
#pragma GCC unroll 9
  for (int k = 0; k < N_OUT; ++k) {
    Vec<T> bar = load<true>(row.bars + channel * N_OUT + k * Simd<T>::WIDTH, 0);
    MS_IN_REGISTER(bar);
    coupled += coupling[k] * bar;
    sums[k] += weighted * bar;
  }
  sums[N_OUT] += coupled * feat * load<true>(row.radial + row.slopes + channel, 0);
  if (NODES) {
    T* target = row.feats_bar + channel;
    store<FULL>(target, load<FULL>(target, lanes) + value * coupled, lanes);
  }
}

/// One vector of the next edge's radial functions.
template <int N_COEF, bool FULL, typename T>
MS_INLINE void radial_step(const PathRun<T>& run, int edge, int64_t channel, int lanes, T* radial) {
  Vec<T> value, slope;
  polynomial<N_COEF, true, FULL>(run.coefs[edge] + channel, run.channels, run.t[edge], lanes, value,
                                 slope);
  store<true>(radial + channel, value, 0);
  store<true>(radial + padded(run.channels) + channel, slope, 0);
}

template <int N_COEF, typename T>
MS_INLINE void radial_edge(const PathRun<T>& run, int edge, T* radial) {
  constexpr int WIDTH = Simd<T>::WIDTH;
  int64_t channel = 0;
  for (; channel + WIDTH <= run.channels; channel += WIDTH)
    radial_step<N_COEF, true>(run, edge, channel, WIDTH, radial);
  if (channel < run.channels)
    radial_step<N_COEF, false>(run, edge, channel, int(run.channels - channel), radial);
}

/// Besides, unless `next_radial` is null, evaluates the next edge's radial functions, whose memory
/// traffic hides behind the arithmetic.
template <int N_COEF, int N_OUT, bool NODES, bool NEXT, typename T>
MS_INLINE void back_row(const PathRun<T>& run, int edge, const BackRow<T>& row, const T* couplings,
                        T* next_radial, T* target) {
  const int64_t channels = run.channels;
  constexpr int WIDTH = Simd<T>::WIDTH;
  T coupling[N_OUT];
  Vec<T> sums[N_OUT + 1] = {};
#pragma GCC unroll 9
  for (int k = 0; k < N_OUT; ++k) coupling[k] = couplings[k * EDGES];
  int64_t channel = 0;
  for (; channel + WIDTH <= channels; channel += WIDTH) {
    if (NEXT) radial_step<N_COEF, true>(run, edge + 1, channel, WIDTH, next_radial);
    back_step<N_OUT, NODES, true>(row, coupling, channel, WIDTH, sums);
  }
  if (channel < channels) {
    const int lanes = int(channels - channel);
    if (NEXT) radial_step<N_COEF, false>(run, edge + 1, channel, lanes, next_radial);
    back_step<N_OUT, NODES, false>(row, coupling, channel, lanes, sums);
  }
  store_sums<N_OUT + 1, T>(target, sums);
}

template <int N_COEF, int N_OUT, bool NODES, typename T>
void back_path(const PathRun<T>& run, const BackRun<T>& back) {
  const int64_t size = padded(run.channels);
  radial_edge<N_COEF>(run, 0, back.radial);
  for (int e = 0; e < run.count; ++e) {
    const int64_t sender = back.sender[e];
    if (NODES) acquire(*back.locks, sender);
    for (int i = 0; i < run.n_in; ++i) {
      T* feats_bar = NODES ? back.up_bar + sender * run.channels + run.rows_in[i] : nullptr;
      const int next = e + 1 < run.count ? e + 1 : e;
      const T* next_bar =
          NODES ? back.up_bar + back.sender[next] * run.channels + run.rows_in[i] : nullptr;
      const BackRow<T> row{back.radial + e % 2 * 2 * size,
                           run.feats[e] + run.rows_in[i],
                           back.bars,
                           size,
                           feats_bar,
                           run.feats[next] + run.rows_in[i],
                           next_bar};
      const T* couplings = run.couplings + i * N_OUT * EDGES + e;
      T* sums = back.sums + (e * run.n_in + i) * SUMS;
      T* next_radial = back.radial + (e + 1) % 2 * 2 * size;
      if (i == 0 && e + 1 < run.count)
        back_row<N_COEF, N_OUT, NODES, true>(run, e, row, couplings, next_radial, sums);
      else
        back_row<N_COEF, N_OUT, NODES, false>(run, e, row, couplings, next_radial, sums);
    }
    if (NODES) release(*back.locks, sender);
  }
}

template <int N_COEF, bool NODES, typename T>
MS_INLINE void back_path_of(int n_out, const PathRun<T>& run, const BackRun<T>& back) {
  switch (n_out) {
    case 1: return back_path<N_COEF, 1, NODES>(run, back);
    case 3: return back_path<N_COEF, 3, NODES>(run, back);
    case 5: return back_path<N_COEF, 5, NODES>(run, back);
    case 7: return back_path<N_COEF, 7, NODES>(run, back);
    default: return back_path<N_COEF, 9, NODES>(run, back);
  }
}

/// Brings a receiver's cotangents of one path together, times its norm; zero beyond the channels.
template <typename T>
MS_INLINE void pack_bars(const ConvInputs<T>& inputs, const ConvBlock& block, int64_t receiver,
                         const T* const* out_bar, T* bars) {
  constexpr int WIDTH = Simd<T>::WIDTH;
  const T norm = inputs.edges.norm ? inputs.edges.norm[receiver] : T(1);
  for (int k = 0; k < block.n_out; ++k) {
    const T* row = row_of(inputs, out_bar, block.rows_out[k], receiver);
    T* target = bars + k * WIDTH;
    for (int64_t channel = 0; channel < inputs.channels; channel += WIDTH) {
      const int64_t left = inputs.channels - channel;
      const Vec<T> bar = load_lanes(row + channel, left < WIDTH ? int(left) : WIDTH);
      store<true>(target + channel * block.n_out, norm * bar, 0);
    }
  }
}

/// Couplings of a path as [n_in, n_out, HARMONICS_AT_ONCE]; the last axis runs over harmonics from
/// the first that it reads.
template <typename T>
MS_INLINE void spread_terms(const ConvBlock& block, T* spread) {
  for (int i = 0; i < block.n_in * block.n_out * HARMONICS_AT_ONCE; ++i) spread[i] = T(0);
  for (int k = 0; k < block.n_terms; ++k) {
    const BlockTerm& term = block.terms[k];
    spread[(term.in * block.n_out + term.out) * HARMONICS_AT_ONCE + term.edge - block.first_edge] +=
        T(term.value);
  }
}

/// Adds to the cotangents of the harmonics [EDGES, ATTRS_STRIDE] and of the place between knots
/// [EDGES].
template <typename T>
MS_INLINE void add_sums(const ConvBlock& block, int count, const T* spread, const T* sums,
                        T* attrs_bar, T* radial) {
  constexpr int WIDTH = Simd<T>::WIDTH;
  for (int e = 0; e < count; ++e, attrs_bar += ATTRS_STRIDE)
    for (int lane = 0; lane < block.n_edge; lane += WIDTH) {
      T* target = attrs_bar + block.first_edge + lane;
      Vec<T> bar = load<true>(target, 0);
      const T* coupling = spread + lane;
      for (int i = 0; i < block.n_in; ++i)
        for (int k = 0; k < block.n_out; ++k, coupling += HARMONICS_AT_ONCE)
          bar += sums[(e * block.n_in + i) * SUMS + k] * load<true>(coupling, 0);
      store<true>(target, bar, 0);
    }
  for (int e = 0; e < count; ++e)
    for (int i = 0; i < block.n_in; ++i)
      radial[e] += sums[(e * block.n_in + i) * SUMS + block.n_out];
}

template <typename T>
void conv_backward(const ConvInputs<T>& inputs, const EdgeRuns& runs, const T* const* out_bar,
                   T* up_bar, const SenderLocks& locks, T* scratch) {
  alignas(64) T sums[EDGES * MAX_BLOCK_ROWS * SUMS];
  alignas(64) T spread[MAX_BLOCK_ROWS * MAX_BLOCK_ROWS * HARMONICS_AT_ONCE];
  const ConvScratch<T> chunk(inputs, runs, scratch);
  const int64_t attrs_size = inputs.dim_edge * EDGES;
  for (int64_t i = 0; i < runs.n_runs * EDGES * ATTRS_STRIDE; ++i) chunk.attrs_bar[i] = T(0);
  for (int64_t i = 0; i < runs.n_runs * EDGES; ++i) chunk.radial[i] = T(0);
  for (int64_t k = 0; k < runs.n_runs; ++k)
    harmonics(inputs.edges, runs.runs[k], T(1), chunk.attrs + k * attrs_size);
  walk_paths(inputs, runs, chunk, [&](int b, int64_t k, const PathRun<T>& run) {
    const ConvBlock& block = inputs.blocks[b];
    const EdgeRun& edges = runs.runs[k];
    if (k == 0) spread_terms(block, spread);
    if (edges.starts_sum) pack_bars(inputs, block, edges.receiver, out_bar, chunk.bars);
    const int32_t* sender = inputs.edges.sender + edges.edge;
    const BackRun<T> back{chunk.radial_values, chunk.bars, sender, up_bar, sums, &locks};
    with_degree(inputs.edges.n_coef, [&](auto n_coef) {
      if (up_bar)
        back_path_of<n_coef.value, true>(block.n_out, run, back);
      else
        back_path_of<n_coef.value, false>(block.n_out, run, back);
    });
    add_sums(block, edges.count, spread, sums, chunk.attrs_bar + k * EDGES * ATTRS_STRIDE,
             chunk.radial + k * EDGES);
  });
  for (int64_t k = 0; k < runs.n_runs; ++k)
    add_edge_gradients(inputs.edges, runs.runs[k], chunk.attrs_bar + k * EDGES * ATTRS_STRIDE,
                       chunk.radial + k * EDGES);
}

}  // namespace ISA
}  // namespace mace_stream
