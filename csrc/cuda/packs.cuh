// Packs of channels, loops with constant counters, and sums over a warp: what all passes use.
//
// The text before this file defines `Real`.

#pragma once

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// ---- packs of channels ----

/// `WIDTH` neighboring channels of one thread.
template <int WIDTH>
struct alignas(WIDTH * sizeof(Real)) Pack {
  Real v[WIDTH];
};

template <int WIDTH>
__device__ __forceinline__ Pack<WIDTH> zero_pack() {
  Pack<WIDTH> pack;
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) pack.v[i] = Real(0);
  return pack;
}

template <int N, int WIDTH>
__device__ __forceinline__ void set_zero(Pack<WIDTH> (&rows)[N]) {
#pragma unroll
  for (int m = 0; m < N; ++m) rows[m] = zero_pack<WIDTH>();
}

/// accum += a * b
template <int WIDTH>
__device__ __forceinline__ void add_product(Pack<WIDTH>& accum, const Pack<WIDTH>& a, Real b) {
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) accum.v[i] = fma(a.v[i], b, accum.v[i]);
}

template <int WIDTH>
__device__ __forceinline__ void add_product(Pack<WIDTH>& accum, const Pack<WIDTH>& a,
                                            const Pack<WIDTH>& b) {
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) accum.v[i] = fma(a.v[i], b.v[i], accum.v[i]);
}

template <int WIDTH>
__device__ __forceinline__ Pack<WIDTH> product(const Pack<WIDTH>& a, const Pack<WIDTH>& b) {
  Pack<WIDTH> result;
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) result.v[i] = a.v[i] * b.v[i];
  return result;
}

/// Sum over the thread's channels of a * b.
template <int WIDTH>
__device__ __forceinline__ Real dot(const Pack<WIDTH>& a, const Pack<WIDTH>& b) {
  Real sum = Real(0);
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) sum = fma(a.v[i], b.v[i], sum);
  return sum;
}

template <int WIDTH>
__device__ __forceinline__ Pack<WIDTH> load(const Real* source, bool active) {
  return active ? *reinterpret_cast<const Pack<WIDTH>*>(source) : zero_pack<WIDTH>();
}

template <int WIDTH>
__device__ __forceinline__ void store(Real* target, const Pack<WIDTH>& pack, bool active) {
  if (active) *reinterpret_cast<Pack<WIDTH>*>(target) = pack;
}

/// For data that nobody reads soon: it passes through the caches without staying.
template <int WIDTH>
__device__ __forceinline__ void store_once(Real* target, const Pack<WIDTH>& pack, bool active) {
  if (!active) return;
  if constexpr (WIDTH == 1) __stcs(target, pack.v[0]);
  if constexpr (WIDTH == 2 && sizeof(Real) == 4)
    __stcs(reinterpret_cast<float2*>(target), float2{pack.v[0], pack.v[1]});
  if constexpr (WIDTH == 2 && sizeof(Real) == 8)
    __stcs(reinterpret_cast<double2*>(target), double2{pack.v[0], pack.v[1]});
}

template <int WIDTH>
__device__ __forceinline__ void add_atomically(Real* target, const Pack<WIDTH>& pack, bool active) {
  if (!active) return;
#if __CUDA_ARCH__ >= 900
  if constexpr (WIDTH == 2 && sizeof(Real) == 4) {
    atomicAdd(reinterpret_cast<float2*>(target), float2{pack.v[0], pack.v[1]});
    return;
  }
#endif
#pragma unroll
  for (int i = 0; i < WIDTH; ++i) atomicAdd(target + i, pack.v[i]);
}

// ---- loops whose counters are constants, so that array elements are registers ----

template <int I>
struct Index {
  static constexpr int value = I;
};

template <int... I>
struct Indices {};

template <typename First, typename Second>
struct Joined;

template <int... I, int... J>
struct Joined<Indices<I...>, Indices<J...>> {
  using type = Indices<I..., (int(sizeof...(I)) + J)...>;
};

/// Indices<0, ..., N - 1>, built by halving.
template <int N>
struct Range {
  using type = typename Joined<typename Range<N / 2>::type, typename Range<N - N / 2>::type>::type;
};
template <>
struct Range<0> {
  using type = Indices<>;
};
template <>
struct Range<1> {
  using type = Indices<0>;
};

template <typename Body, int... I>
__device__ __forceinline__ void call_with(Body& body, Indices<I...>) {
  (body(Index<I>{}), ...);
}

/// Calls `body(Index<0>{}), ..., body(Index<N - 1>{})`.
template <int N, typename Body>
__device__ __forceinline__ void unrolled(Body body) {
  call_with(body, typename Range<N>::type{});
}

// ---- sums over the lanes of a warp ----

__host__ __device__ constexpr int next_power_of_two(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

/// One halving step: the lanes that differ in bit `HALF * PER` share out 2 * HALF sums.
template <int HALF, int PER>
__device__ __forceinline__ void halve(Real* part, int lane) {
  if constexpr (HALF >= 1) {
    const bool upper = lane & (HALF * PER);
#pragma unroll
    for (int m = 0; m < HALF; ++m) {
      const Real kept = upper ? part[m + HALF] : part[m];
      const Real sent = upper ? part[m] : part[m + HALF];
      part[m] = kept + __shfl_xor_sync(ALL_LANES, sent, HALF * PER);
    }
    halve<HALF / 2, PER>(part, lane);
  }
}
