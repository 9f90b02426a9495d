// Sums over the lanes of several vectors at once. Included by the isa_*.cpp files only.

/// Has a vector loaded once where several instructions read it: with their memory operands, loads
/// instead of arithmetic would be the limit.
#if defined(__x86_64__)
#define MS_IN_REGISTER(vec) asm("" : "+v"(vec))
#else
#define MS_IN_REGISTER(vec) asm("" : "+w"(vec))
#endif

namespace mace_stream {
namespace ISA {

template <typename T>
struct LaneNumber {
  typedef int64_t Type;
};
template <>
struct LaneNumber<float> {
  typedef int32_t Type;
};

/// Where lane `j` of a fold takes its first summand from, in the lanes of a and then b; the second
/// one is half a group further. Both hold GROUPS partial sums; the result has those of a, then
/// those of b, in half as many lanes each.
template <int GROUPS, int WIDTH>
constexpr int first_summand(int j) {
  constexpr int SIZE = WIDTH / GROUPS, HALF = SIZE / 2;
  return j / HALF * SIZE + j % HALF;
}

template <int GROUPS, typename T, int... J>
MS_INLINE Vec<T> fold(const Vec<T>& a, const Vec<T>& b, std::integer_sequence<int, J...>) {
  constexpr int WIDTH = Simd<T>::WIDTH, HALF = WIDTH / GROUPS / 2;
#if defined(__clang__)
  return __builtin_shufflevector(a, b, first_summand<GROUPS, WIDTH>(J)...) +
         __builtin_shufflevector(a, b, first_summand<GROUPS, WIDTH>(J) + HALF...);
#else
  typedef typename LaneNumber<T>::Type Numbers __attribute__((vector_size(VECTOR_BYTES)));
  const Numbers first = {first_summand<GROUPS, WIDTH>(J)...};
  const Numbers second = {first_summand<GROUPS, WIDTH>(J) + HALF...};
  return __builtin_shuffle(a, b, first) + __builtin_shuffle(a, b, second);
#endif
}

/// Lane k of the result is the sum of vector k, for at most WIDTH vectors.
template <int GROUPS, int N, typename T>
MS_INLINE Vec<T> sums_of_lanes(const Vec<T>* vectors) {
  constexpr int WIDTH = Simd<T>::WIDTH;
  static_assert(N <= WIDTH / GROUPS, "more sums than lanes");
  if constexpr (GROUPS == WIDTH) {
    return vectors[0];
  } else {
    Vec<T> folded[(N + 1) / 2];
#pragma GCC unroll 8
    for (int k = 0; k < (N + 1) / 2; ++k)
      folded[k] = fold<GROUPS, T>(vectors[2 * k], vectors[2 * k + 1 < N ? 2 * k + 1 : 2 * k],
                                  std::make_integer_sequence<int, WIDTH>());
    return sums_of_lanes<2 * GROUPS, (N + 1) / 2, T>(folded);
  }
}

/// Stores the sums of N vectors, and perhaps something in the places up to the next multiple of the
/// vectors' width.
template <int N, typename T>
MS_INLINE void store_sums(T* target, const Vec<T> (&vectors)[N]) {
  constexpr int WIDTH = Simd<T>::WIDTH;
  if constexpr (N <= WIDTH) {
    store<true>(target, sums_of_lanes<1, N, T>(vectors), 0);
  } else {
    store<true>(target, sums_of_lanes<1, WIDTH, T>(vectors), 0);
    store_sums<N - WIDTH, T>(target + WIDTH,
                             reinterpret_cast<const Vec<T>(&)[N - WIDTH]>(vectors[WIDTH]));
  }
}

/// The first lanes of a vector, the others being zero. Unlike load<false>, does not send whole
/// vectors through memory.
template <typename T>
MS_INLINE Vec<T> load_lanes(const T* source, int lanes) {
  if (lanes == Simd<T>::WIDTH) return load<true>(source, lanes);
  T few[Simd<T>::WIDTH] = {};
  for (int i = 0; i < lanes; ++i) few[i] = source[i];
  return load<true>(few, lanes);
}

template <typename T>
MS_INLINE void store_lanes(T* target, const Vec<T>& vec, int lanes) {
  if (lanes == Simd<T>::WIDTH) return store<true>(target, vec, lanes);
  T few[Simd<T>::WIDTH];
  store<true>(few, vec, lanes);
  for (int i = 0; i < lanes; ++i) target[i] = few[i];
}

template <typename T>
MS_INLINE T sum_lanes(const Vec<T>& vec) {
  const Vec<T> vectors[1] = {vec};
  return sums_of_lanes<1, 1, T>(vectors)[0];
}

}  // namespace ISA
}  // namespace mace_stream
