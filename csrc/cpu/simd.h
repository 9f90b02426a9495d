// Vectors of VECTOR_BYTES. Included by block_kernels.h only, inside an instruction set's namespace.

#define MS_INLINE inline __attribute__((always_inline))

template <typename T>
struct Simd {
  static constexpr int WIDTH = VECTOR_BYTES / sizeof(T);
  typedef T Vec __attribute__((vector_size(VECTOR_BYTES)));
};

template <typename T>
using Vec = typename Simd<T>::Vec;

/// Load a vector; unless `FULL`, only its first `lanes` elements, the others being zero.
template <bool FULL, typename T>
MS_INLINE Vec<T> load(const T* source, int lanes) {
  Vec<T> vec = {};
  if (FULL || lanes == Simd<T>::WIDTH)
    __builtin_memcpy(&vec, source, sizeof(vec));
  else
    for (int i = 0; i < lanes; ++i) vec[i] = source[i];
  return vec;
}

template <bool FULL, typename T>
MS_INLINE void store(T* target, const Vec<T>& vec, int lanes) {
  if (FULL || lanes == Simd<T>::WIDTH)
    __builtin_memcpy(target, &vec, sizeof(vec));
  else
    for (int i = 0; i < lanes; ++i) target[i] = vec[i];
}

/// What a vector is summed down to before it is stored per edge: at most four lanes.
template <typename T>
struct Lanes {
  static constexpr int COUNT = Simd<T>::WIDTH < 4 ? Simd<T>::WIDTH : 4;
};

/// Add the upper half of `BYTES` to the lower one until few lanes are left, and store these.
template <int BYTES, typename T, typename Part>
MS_INLINE void store_few_lanes(T* target, const Part& part) {
  if constexpr (BYTES == Lanes<T>::COUNT * sizeof(T)) {
    __builtin_memcpy(target, &part, BYTES);
  } else {
    typedef T Half __attribute__((vector_size(BYTES / 2)));
    Half lower, upper;
    __builtin_memcpy(&lower, &part, BYTES / 2);
    __builtin_memcpy(&upper, reinterpret_cast<const char*>(&part) + BYTES / 2, BYTES / 2);
    const Half sum = lower + upper;
    store_few_lanes<BYTES / 2>(target, sum);
  }
}

/// Vectors per tile: what keeps N_ROWS accumulators per vector in registers, one operand each
/// beside.
constexpr int tile_vectors(int n_rows) {
  if (REGISTERS >= 32) return n_rows <= 5 ? 4 : 2;
  return n_rows == 1 ? 4 : n_rows <= 5 ? 2 : 1;
}
