// What the convolution's passes share: packs of channels, a warp's share of the work, rows of a
// node.
//
// The text before this file is written per convolution (mace_stream/kernels/source.py): `Real`,
// `BLOCK` (threads per block), `STAGES` (edges on their way per warp), `DIM_IN`, `DIM_EDGE`,
// `DIM_OUT`, `N_PATHS`, `Pair`, `Term` and one struct per group of paths, a group being what one
// kernel can hold in registers:
//
//   struct Group0 {
//     static constexpr bool FIRST;                          the first group to write shared outputs
//     static constexpr int N_IN, N_OUT, N_PATHS, N_PAIRS;
//     static constexpr int ROWS_IN[], ROWS_OUT[], PATHS[];  where the group's rows and paths lie
//     static constexpr Pair PAIRS[];                        products weight[path] * feature[in]
//     static constexpr Term TERMS[];                        couplings, those of a pair together
//   };

#pragma once

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr int EDGES_PER_CHUNK = 32;

/// The graph of one launch. A row is a receiver, a sender, or a chunk of edges in any order.
struct Graph {
  int64_t n_rows, n_edges, channels;
  const int64_t* indptr;    // [n_rows + 1] edges of each row; null for chunks
  const int32_t* sender;    // [n_edges]
  const int32_t* receiver;  // [n_edges]    only for chunks and the sender-owned pass
  const int64_t* edge_of;   // [n_edges]    edges sorted by sender, only for the sender-owned pass
};

/// The three inputs, or their cotangents; a null pointer stands for zeros.
struct EdgeArrays {
  const Real* node_feats;    // [n_nodes, DIM_IN, channels]
  const Real* edge_attrs;    // [n_edges, DIM_EDGE]
  const Real* path_weights;  // [n_edges, N_PATHS, channels]
};

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

// ---- a warp's share of the work ----

/// The row and the channels that a warp owns. Warps never share data, so any number of rows and
/// channels works; lanes beyond the last channel carry zeros.
struct Share {
  int64_t row;  // -1: nothing to do
  int tile;
  int channel;
  bool active;
  int lane;

  __device__ __forceinline__ Share(const Graph& graph, int width) {
    const int64_t warp = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / WARP;
    const int n_tiles = int((graph.channels + WARP * width - 1) / (WARP * width));
    lane = threadIdx.x % WARP;
    row = warp / n_tiles;
    tile = int(warp % n_tiles);
    channel = (tile * WARP + lane) * width;
    active = channel < graph.channels;
    if (row >= graph.n_rows) row = -1;
  }
};

/// First and last (exclusive) edge of a row.
struct EdgeRange {
  int64_t first, last;

  template <bool ANY_ORDER>
  static __device__ __forceinline__ EdgeRange of(const Graph& graph, int64_t row) {
    if constexpr (!ANY_ORDER) return {graph.indptr[row], graph.indptr[row + 1]};
    const int64_t first = row * EDGES_PER_CHUNK;
    const int64_t last = first + EDGES_PER_CHUNK;
    return {first, last < graph.n_edges ? last : graph.n_edges};
  }
};

// ---- the rows of one node, the paths of one edge ----

template <typename G, int WIDTH>
__device__ __forceinline__ void load_rows_out(const Real* source, int64_t channels, bool active,
                                              Pack<WIDTH> (&rows)[G::N_OUT]) {
  unrolled<G::N_OUT>([&](auto m) {
    constexpr int row = G::ROWS_OUT[m.value];
    rows[m.value] = load<WIDTH>(source + row * channels, active);
  });
}

/// Writes the rows of a receiver, or adds them where other warps do so too.
template <typename G, bool ATOMIC, int WIDTH>
__device__ __forceinline__ void put_rows_out(Real* target, int64_t channels, bool active,
                                             const Pack<WIDTH> (&rows)[G::N_OUT]) {
  unrolled<G::N_OUT>([&](auto m) {
    constexpr int row = G::ROWS_OUT[m.value];
    if constexpr (ATOMIC)
      add_atomically<WIDTH>(target + row * channels, rows[m.value], active);
    else
      store<WIDTH>(target + row * channels, rows[m.value], active);
  });
}

template <typename G, int WIDTH>
__device__ __forceinline__ void add_rows_in(Real* target, int64_t channels, bool active,
                                            const Pack<WIDTH> (&rows)[G::N_IN]) {
  unrolled<G::N_IN>([&](auto m) {
    constexpr int row = G::ROWS_IN[m.value];
    add_atomically<WIDTH>(target + row * channels, rows[m.value], active);
  });
}

template <typename G, int WIDTH>
__device__ __forceinline__ void store_paths(Real* target, int64_t channels, bool active,
                                            const Pack<WIDTH> (&weights)[G::N_PATHS]) {
  unrolled<G::N_PATHS>([&](auto p) {
    constexpr int path = G::PATHS[p.value];
    store_once<WIDTH>(target + path * channels, weights[p.value], active);
  });
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

/// Sums `DIM_EDGE` values over the lanes of a warp and stores them, or adds them to what an earlier
/// group stored. Each step hands half of the values to a partner lane, so few shuffles are needed.
template <bool FIRST>
__device__ __forceinline__ void reduce_and_store(const Real (&values)[DIM_EDGE], Real* target) {
  constexpr int SIZE = next_power_of_two(DIM_EDGE);
  constexpr int LANES_PER_VALUE = WARP / SIZE;
  static_assert(SIZE <= WARP, "spherical harmonics up to l = 4");
  const int lane = threadIdx.x % WARP;
  Real part[SIZE];
#pragma unroll
  for (int m = 0; m < SIZE; ++m) part[m] = m < DIM_EDGE ? values[m] : Real(0);
  halve<SIZE / 2, LANES_PER_VALUE>(part, lane);
#pragma unroll
  for (int mask = LANES_PER_VALUE / 2; mask >= 1; mask /= 2)
    part[0] += __shfl_xor_sync(ALL_LANES, part[0], mask);

  // The upper bits of the lane chose the component.

  const int component = lane / LANES_PER_VALUE;
  if (lane % LANES_PER_VALUE == 0 && component < DIM_EDGE)
    target[component] = FIRST ? part[0] : target[component] + part[0];
}
