// The first layer: radial features times harmonics, summed over each row and sender species.
// Included by the isa_*.cpp files only.

namespace mace_stream {
namespace ISA {

/// Scratch of a thread. Rows of one receiver are far apart in memory, often by a multiple of what
/// the first-level cache can tell apart, so they are brought together.
template <typename T>
struct ScatterScratch {
  int64_t width;      /* padded(n_hidden) */
  T* rows;            /* [dim_edge, width] sums, or their cotangents, of a receiver and a species */
  T *values, *slopes; /* [EDGES, width] */

  MS_INLINE ScatterScratch(const ScatterInputs<T>& inputs, T* scratch) {
    width = padded(inputs.n_hidden);
    rows = scratch;
    values = rows + MAX_HARMONICS * width;
    slopes = values + EDGES * width;
  }
};

template <typename T>
MS_INLINE int dim_edge_of(const ScatterInputs<T>& inputs) {
  return (inputs.edges.l_max + 1) * (inputs.edges.l_max + 1);
}

/// Offset of one row, for the receiver and sender species of a run.
template <typename T>
MS_INLINE int64_t scatter_place(const ScatterInputs<T>& inputs, const EdgeRun& run, int row) {
  return ((row * inputs.n_nodes + run.receiver) * inputs.n_species + run.sender_species) *
         inputs.n_hidden;
}

/// Calls f.run<SIZE>(first) for groups of 8, 4 or 1 rows that cover [0, n_rows).
template <typename F>
MS_INLINE void in_groups(int n_rows, const F& f) {
  int row = 0;
  for (; row + 8 <= n_rows; row += 8) f.template run<8>(row);
  for (; row + 4 <= n_rows; row += 4) f.template run<4>(row);
  for (; row < n_rows; ++row) f.template run<1>(row);
}

/// One run of edges.
template <typename T>
struct ScatterSum {
  int count;
  const T* attrs; /* [dim_edge, EDGES] */
  const ScatterScratch<T>& own;

  template <int ROWS>
  MS_INLINE void run(int row) const {
    for (int64_t column = 0; column < own.width; column += Simd<T>::WIDTH) {
      T* target = own.rows + row * own.width + column;
      Vec<T> sum[ROWS];
#pragma GCC unroll 8
      for (int k = 0; k < ROWS; ++k) sum[k] = load<true>(target + k * own.width, 0);
      for (int e = 0; e < count; ++e) {
        const Vec<T> value = load<true>(own.values + e * own.width + column, 0);
#pragma GCC unroll 8
        for (int k = 0; k < ROWS; ++k) sum[k] += attrs[(row + k) * EDGES + e] * value;
      }
#pragma GCC unroll 8
      for (int k = 0; k < ROWS; ++k) store<true>(target + k * own.width, sum[k], 0);
    }
  }
};

/// Adds the sums of a receiver and species to `out`.
template <typename T>
MS_INLINE void store_rows(const ScatterInputs<T>& inputs, const EdgeRun& run,
                          const ScatterScratch<T>& own, T* out) {
  for (int m = 0; m < dim_edge_of(inputs); ++m) {
    T* row = out + scatter_place(inputs, run, m);
    for (int64_t h = 0; h < inputs.n_hidden; ++h) row[h] += own.rows[m * own.width + h];
  }
}

template <typename T>
void scatter(const ScatterInputs<T>& inputs, const EdgeRuns& runs, T* out, T* scratch) {
  alignas(64) T attrs[MAX_HARMONICS * EDGES];
  const ScatterScratch<T> own(inputs, scratch);
  for (int64_t k = 0; k < runs.n_runs; ++k) {
    const EdgeRun& run = runs.runs[k];
    harmonics(inputs.edges, run, norm_of(inputs.edges, run), attrs);
    radial_values<false>(inputs.edges, run, inputs.table, inputs.edges.n_coef * inputs.n_hidden,
                         inputs.n_hidden, own.values, own.slopes);
    if (run.starts_sum)
      for (int64_t i = 0; i < dim_edge_of(inputs) * own.width; ++i) own.rows[i] = T(0);
    in_groups(dim_edge_of(inputs), ScatterSum<T>{run.count, attrs, own});
    if (k + 1 == runs.n_runs || runs.runs[k + 1].starts_sum) store_rows(inputs, run, own, out);
  }
}

/// One edge of the backward pass: cotangents of its harmonics, and of its place between knots.
template <typename T>
struct ScatterEdge {
  const ScatterScratch<T>& own;
  const T *attrs, *values, *slopes; /* attrs [dim_edge, EDGES], at this edge */
  T *attrs_bar, *radial;            /* [ATTRS_STRIDE], one number */

  template <int ROWS>
  MS_INLINE void run(int row) const {
    Vec<T> bars[ROWS + 1] = {};
    for (int64_t column = 0; column < own.width; column += Simd<T>::WIDTH) {
      const Vec<T> value = load<true>(values + column, 0);
      Vec<T> hidden_bar = {};
#pragma GCC unroll 8
      for (int k = 0; k < ROWS; ++k) {
        Vec<T> bar = load<true>(own.rows + (row + k) * own.width + column, 0);
        MS_IN_REGISTER(bar);
        bars[k] += bar * value;
        hidden_bar += attrs[(row + k) * EDGES] * bar;
      }
      bars[ROWS] += hidden_bar * load<true>(slopes + column, 0);
    }
    T sums[32];
    store_sums<ROWS + 1, T>(sums, bars);
    for (int k = 0; k < ROWS; ++k) attrs_bar[row + k] = sums[k];
    *radial += sums[ROWS];
  }
};

/// Brings the cotangents of a receiver and species together, times the norm.
template <typename T>
MS_INLINE void load_rows(const ScatterInputs<T>& inputs, const EdgeRun& run, const T* out_bar,
                         const ScatterScratch<T>& own) {
  const T norm = norm_of(inputs.edges, run);
  for (int m = 0; m < dim_edge_of(inputs); ++m) {
    const T* row = out_bar + scatter_place(inputs, run, m);
    T* target = own.rows + m * own.width;
    for (int64_t h = 0; h < inputs.n_hidden; ++h) target[h] = norm * row[h];
    for (int64_t h = inputs.n_hidden; h < own.width; ++h) target[h] = T(0);
  }
}

template <typename T>
void scatter_backward(const ScatterInputs<T>& inputs, const EdgeRuns& runs, const T* out_bar,
                      T* scratch) {
  alignas(64) T attrs[MAX_HARMONICS * EDGES], attrs_bar[EDGES * ATTRS_STRIDE], radial[EDGES];
  const ScatterScratch<T> own(inputs, scratch);
  for (int i = 0; i < EDGES * ATTRS_STRIDE; ++i) attrs_bar[i] = T(0);
  for (int64_t k = 0; k < runs.n_runs; ++k) {
    const EdgeRun& run = runs.runs[k];
    harmonics(inputs.edges, run, T(1), attrs);
    radial_values<true>(inputs.edges, run, inputs.table, inputs.edges.n_coef * inputs.n_hidden,
                        inputs.n_hidden, own.values, own.slopes);
    if (run.starts_sum) load_rows(inputs, run, out_bar, own);
    for (int e = 0; e < run.count; ++e) {
      radial[e] = T(0);
      in_groups(dim_edge_of(inputs), ScatterEdge<T>{own, attrs + e, own.values + e * own.width,
                                                    own.slopes + e * own.width,
                                                    attrs_bar + e * ATTRS_STRIDE, radial + e});
    }
    add_edge_gradients(inputs.edges, run, attrs_bar, radial);
  }
}

}  // namespace ISA
}  // namespace mace_stream
