// Radial tables: polynomials of the place between two knots. Included by the isa_*.cpp files only.

namespace mace_stream {
namespace ISA {

template <typename T>
MS_INLINE T sum_lanes(const Vec<T>& vec) {
  T lanes[Lanes<T>::COUNT];
  store_few_lanes<VECTOR_BYTES>(lanes, vec);
  return Lanes<T>::COUNT == 2 ? lanes[0] + lanes[1]
                              : (lanes[0] + lanes[2]) + (lanes[1] + lanes[Lanes<T>::COUNT - 1]);
}

/// Horner's scheme for one vector of channels; `stride` from coefficient to coefficient.
template <int N_COEF, bool SLOPE, bool FULL, typename T>
MS_INLINE void polynomial(const T* coefs, int64_t stride, T t, int lanes, Vec<T>& value,
                          Vec<T>& slope) {
  value = load<FULL>(coefs + (N_COEF - 1) * stride, lanes);
  slope = Vec<T>{};
#pragma GCC unroll 6
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

/// The same for every edge of a run: values and slopes [count, padded(size)]. The coefficients
/// of table row r start at table + r * row_stride.
template <bool SLOPE, typename T>
void radial_values(const EdgeInputs<T>& edges, const EdgeRun& run, const T* table,
                   int64_t row_stride, int64_t size, T* values, T* slopes) {
  for (int e = 0; e < run.count; ++e) {
    const T* coefs = table + edges.row[run.edge + e] * row_stride;
    const T t = edges.t[run.edge + e];
    const int64_t at = e * padded(size);
    if (edges.n_coef == 4)
      polynomials<4, SLOPE>(coefs, size, t, values + at, slopes + at);
    else
      polynomials<6, SLOPE>(coefs, size, t, values + at, slopes + at);
  }
}

}  // namespace ISA
}  // namespace mace_stream
