// Radial tables: polynomials of the place between two knots. Included by the isa_*.cpp files only.

namespace mace_stream {
namespace ISA {

/// Calls f with the number of coefficients as a constant.
template <typename F>
MS_INLINE void with_degree(int n_coef, const F& f) {
  if (n_coef == 4)
    f(std::integral_constant<int, 4>());
  else if (n_coef == 6)
    f(std::integral_constant<int, 6>());
  else
    f(std::integral_constant<int, 8>());
}

/// Horner's scheme for one vector of channels; `stride` from coefficient to coefficient.
template <int N_COEF, bool SLOPE, bool FULL, typename T>
MS_INLINE void polynomial(const T* coefs, int64_t stride, T t, int lanes, Vec<T>& value,
                          Vec<T>& slope) {
  value = load<FULL>(coefs + (N_COEF - 1) * stride, lanes);
  slope = Vec<T>{};
#pragma GCC unroll 8
  for (int k = N_COEF - 2; k >= 0; --k) {
    if (SLOPE) slope = k == N_COEF - 2 ? value : slope * t + value;
    value = value * t + load<FULL>(coefs + k * stride, lanes);
  }
}

/// values and slopes [size], padded to whole vectors, of one polynomial per column of coefs
/// [N_COEF, size].
template <int N_COEF, bool SLOPE, typename T>
MS_INLINE void polynomials(const T* coefs, int64_t size, T t, T* values, T* slopes) {
  constexpr int WIDTH = Simd<T>::WIDTH;
  Vec<T> value, slope;
  int64_t column = 0;
  for (; column + WIDTH <= size; column += WIDTH) {
    polynomial<N_COEF, SLOPE, true>(coefs + column, size, t, WIDTH, value, slope);
    store<true>(values + column, value, WIDTH);
    if (SLOPE) store<true>(slopes + column, slope, WIDTH);
  }
  if (column == size) return;
  polynomial<N_COEF, SLOPE, false>(coefs + column, size, t, int(size - column), value, slope);
  store<true>(values + column, value, WIDTH);
  if (SLOPE) store<true>(slopes + column, slope, WIDTH);
}

/// The same for every edge of a run: values and slopes [count, padded(size)]. The coefficients of
/// table row r start at table + r * row_stride.
template <bool SLOPE, typename T>
void radial_values(const EdgeInputs<T>& edges, const EdgeRun& run, const T* table,
                   int64_t row_stride, int64_t size, T* values, T* slopes) {
  for (int e = 0; e < run.count; ++e) {
    const T* coefs = table + edges.row[run.edge + e] * row_stride;
    const T t = edges.t[run.edge + e];
    const int64_t at = e * padded(size);
    with_degree(edges.n_coef, [&](auto n_coef) {
      polynomials<n_coef.value, SLOPE>(coefs, size, t, values + at, slopes + at);
    });
  }
}

}  // namespace ISA
}  // namespace mace_stream
