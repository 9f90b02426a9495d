// The first layer: radial features times harmonics, summed over each row and sender species.
// Included by the isa_*.cpp files only.

namespace mace_stream {
namespace ISA {

/// Calls f.operator()<SIZE>(first) for groups of 8, 4 or 1 rows that cover [0, n_rows).
template <typename F>
MS_INLINE void in_groups(int n_rows, const F& f) {
  int row = 0;
  for (; row + 8 <= n_rows; row += 8) f.template run<8>(row);
  for (; row + 4 <= n_rows; row += 4) f.template run<4>(row);
  for (; row < n_rows; ++row) f.template run<1>(row);
}

/// One run of edges: target rows [dim_edge] of the receiver, `stride` apart.
template <typename T>
struct ScatterSum {
  int count;
  int64_t n_hidden, stride;
  const T *attrs, *hidden; /* [dim_edge, EDGES], [EDGES, padded(n_hidden)] */
  T* target;

  template <int ROWS, bool FULL>
  MS_INLINE void tile(int row, int64_t column, int lanes) const {
    Vec<T> accum[ROWS] = {};
    for (int e = 0; e < count; ++e) {
      const Vec<T> value = load<true>(hidden + e * padded(n_hidden) + column, 0);
#pragma GCC unroll 8
      for (int k = 0; k < ROWS; ++k) accum[k] += attrs[(row + k) * EDGES + e] * value;
    }
#pragma GCC unroll 8
    for (int k = 0; k < ROWS; ++k) {
      T* sum = target + (row + k) * stride + column;
      store<FULL>(sum, load<FULL>(sum, lanes) + accum[k], lanes);
    }
  }

  template <int ROWS>
  MS_INLINE void run(int row) const {
    constexpr int WIDTH = Simd<T>::WIDTH;
    int64_t column = 0;
    for (; column + WIDTH <= n_hidden; column += WIDTH) tile<ROWS, true>(row, column, WIDTH);
    if (column < n_hidden) tile<ROWS, false>(row, column, int(n_hidden - column));
  }
};

/// Where the block of a receiver and a sender species starts, for harmonic 0.
template <typename T>
MS_INLINE int64_t scatter_offset(const ScatterInputs<T>& inputs, const EdgeRun& run) {
  return (run.receiver * inputs.n_species + run.sender_species) * inputs.n_hidden;
}

template <typename T>
void scatter(const ScatterInputs<T>& inputs, const EdgeRuns& runs, T* out, T* scratch) {
  alignas(64) T attrs[MAX_HARMONICS * EDGES];
  const int dim_edge = (inputs.edges.l_max + 1) * (inputs.edges.l_max + 1);
  for (int64_t k = 0; k < runs.n_runs; ++k) {
    const EdgeRun& run = runs.runs[k];
    harmonics(inputs.edges, run, norm_of(inputs.edges, run), attrs);
    radial_values<false>(inputs.edges, run, inputs.table, inputs.edges.n_coef * inputs.n_hidden,
                         inputs.n_hidden, scratch, scratch);
    in_groups(dim_edge, ScatterSum<T>{run.count, inputs.n_hidden,
                                      inputs.n_nodes * inputs.n_species * inputs.n_hidden, attrs,
                                      scratch, out + scatter_offset(inputs, run)});
  }
}

/// One edge of the backward pass: cotangents of its harmonics, and of its place between knots.
template <typename T>
struct ScatterEdge {
  int64_t n_hidden, stride;
  const T *attrs, *values, *slopes; /* attrs [dim_edge, EDGES], at this edge */
  const T* out_bar;
  T *attrs_bar, *radial; /* [ATTRS_STRIDE], one number */

  template <int ROWS, bool FULL>
  MS_INLINE void tile(int row, int64_t column, int lanes, Vec<T> (&bars)[ROWS + 1]) const {
    const Vec<T> value = load<true>(values + column, 0), slope = load<true>(slopes + column, 0);
    Vec<T> hidden_bar = {};
#pragma GCC unroll 8
    for (int k = 0; k < ROWS; ++k) {
      const Vec<T> bar = load<FULL>(out_bar + (row + k) * stride + column, lanes);
      bars[k] += bar * value;
      hidden_bar += attrs[(row + k) * EDGES] * bar;
    }
    bars[ROWS] += hidden_bar * slope;
  }

  template <int ROWS>
  MS_INLINE void run(int row) const {
    constexpr int WIDTH = Simd<T>::WIDTH;
    Vec<T> bars[ROWS + 1] = {};
    int64_t column = 0;
    for (; column + WIDTH <= n_hidden; column += WIDTH) tile<ROWS, true>(row, column, WIDTH, bars);
    if (column < n_hidden) tile<ROWS, false>(row, column, int(n_hidden - column), bars);
    T sums[32];
    store_sums<ROWS + 1, T>(sums, bars);
    for (int k = 0; k < ROWS; ++k) attrs_bar[row + k] = sums[k];
    *radial += sums[ROWS];
  }
};

template <typename T>
void scatter_backward(const ScatterInputs<T>& inputs, const EdgeRuns& runs, const T* out_bar,
                      T* scratch) {
  alignas(64) T attrs[MAX_HARMONICS * EDGES], attrs_bar[EDGES * ATTRS_STRIDE], radial[EDGES];
  const int dim_edge = (inputs.edges.l_max + 1) * (inputs.edges.l_max + 1);
  const int64_t width = padded(inputs.n_hidden);
  T *values = scratch, *slopes = scratch + EDGES * width;
  for (int i = 0; i < EDGES * ATTRS_STRIDE; ++i) attrs_bar[i] = T(0);
  for (int64_t k = 0; k < runs.n_runs; ++k) {
    const EdgeRun& run = runs.runs[k];
    harmonics(inputs.edges, run, T(1), attrs);
    radial_values<true>(inputs.edges, run, inputs.table, inputs.edges.n_coef * inputs.n_hidden,
                        inputs.n_hidden, values, slopes);
    for (int e = 0; e < run.count; ++e) {
      radial[e] = T(0);
      in_groups(dim_edge,
                ScatterEdge<T>{inputs.n_hidden, inputs.n_nodes * inputs.n_species * inputs.n_hidden,
                               attrs + e, values + e * width, slopes + e * width,
                               out_bar + scatter_offset(inputs, run), attrs_bar + e * ATTRS_STRIDE,
                               radial + e});
    }
    add_edge_gradients(inputs.edges, run, attrs_bar, radial, norm_of(inputs.edges, run));
  }
}

}  // namespace ISA
}  // namespace mace_stream
