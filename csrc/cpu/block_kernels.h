// The kernels of one instruction set. Included by the isa_*.cpp files only, which define ISA (a
// namespace), VECTOR_BYTES and REGISTERS, and switch the compiler to that instruction set.
//
// Nothing here may call inline functions of the standard library: the linker would keep one copy of
// such a function, perhaps the one compiled for a newer processor than the one at hand.

namespace mace_stream {
namespace ISA {

#include "simd.h"

// ---- dense couplings of a block of edges ----

/// Attributes of the block's edges, [dim_edge, EDGES], zero where there is no edge.
template <typename T>
MS_INLINE void transpose_attrs(const Shape& shape, const T* edge_attrs, const EdgeBlock& edges,
                               T* attrs) {
  for (int e = 0; e < EDGES; ++e)
    for (int m = 0; m < shape.dim_edge; ++m)
      attrs[m * EDGES + e] =
          e < edges.count ? edge_attrs[edges.edge[e] * shape.dim_edge + m] : T(0);
}

/// M [from, to, EDGES] of one path, where messages flow from input to output rows, and cotangents
/// back.
template <bool BACK, typename T>
MS_INLINE void make_couplings(const PathBlock& block, const T* __restrict__ attrs,
                              T* __restrict__ couplings) {
  const int n_to = BACK ? block.n_in : block.n_out;
  const int size = block.n_in * block.n_out * EDGES;
  for (int i = 0; i < size; ++i) couplings[i] = T(0);
  for (int k = 0; k < block.n_terms; ++k) {
    const BlockTerm& term = block.terms[k];
    const int slot = BACK ? term.out * n_to + term.in : term.in * n_to + term.out;
    const T value = T(term.value);
    for (int e = 0; e < EDGES; ++e)
      couplings[slot * EDGES + e] += value * attrs[term.edge * EDGES + e];
  }
}

// ---- sums over the edges of a row ----

/// One path's share of a sum over edges: which rows of the other end go to which rows of this one.
template <typename T>
struct Flow {
  const EdgeBlock& edges;
  const T* couplings;              /* [n_from, n_to, EDGES] */
  const T* weights;                /* of the path, at edge 0 */
  int64_t weights_stride;          /* from edge to edge */
  const T* source;                 /* features, or message cotangents, of node 0 */
  int64_t source_stride, channels; /* from node to node, from row to row */
  int n_from;
  const int32_t *rows_from, *rows_to;
};

/// sum += M^T rows of the edge's other end; forward, times the weights.
template <bool BACK, int N_TO, int VECTORS, bool FULL, typename T>
MS_INLINE void add_coupled(const Flow<T>& flow, const T* node, const T* coupling, int lanes,
                           const Vec<T> (&weight)[VECTORS], Vec<T> (&sum)[N_TO][VECTORS]) {
  for (int i = 0; i < flow.n_from; ++i, coupling += N_TO * EDGES) {
    const T* row = node + flow.rows_from[i] * flow.channels;
    Vec<T> value[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
      value[v] = load<FULL>(row + v * Simd<T>::WIDTH, lanes);
      if constexpr (!BACK) value[v] *= weight[v];
    }
#pragma GCC unroll 9
    for (int k = 0; k < N_TO; ++k)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) sum[k][v] += coupling[k * EDGES] * value[v];
  }
}

/// What one edge adds to one tile. Forward, weights multiply what leaves; back, what arrives: the
/// fewer rows, as messages have more of them than features.
template <bool BACK, int N_TO, int VECTORS, bool FULL, typename T>
MS_INLINE void add_edge(const Flow<T>& flow, const T* node, const T* coupling, int lanes,
                        const Vec<T> (&weight)[VECTORS], Vec<T> (&accum)[N_TO][VECTORS]) {
  if constexpr (!BACK) {
    add_coupled<BACK, N_TO, VECTORS, FULL>(flow, node, coupling, lanes, weight, accum);
  } else {
    Vec<T> coupled[N_TO][VECTORS] = {};
    add_coupled<BACK, N_TO, VECTORS, FULL>(flow, node, coupling, lanes, weight, coupled);
#pragma GCC unroll 9
    for (int k = 0; k < N_TO; ++k)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) accum[k][v] += weight[v] * coupled[k][v];
  }
}

/// Adds one tile of channels to `target`, whose rows stay in registers over the edges.
template <bool BACK, int N_TO, int VECTORS, bool FULL, typename T>
MS_INLINE void sum_tile(const Flow<T>& flow, int64_t channel, int lanes, T* target) {
  constexpr int WIDTH = Simd<T>::WIDTH;
  Vec<T> accum[N_TO][VECTORS] = {};
  for (int e = 0; e < flow.edges.count; ++e) {
    const T* weights = flow.weights + flow.edges.edge[e] * flow.weights_stride + channel;
    Vec<T> weight[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
      weight[v] = load<FULL>(weights + v * WIDTH, lanes);
      __builtin_prefetch(weights + (VECTORS + v) * WIDTH);  // the next tile takes this edge again
    }
    add_edge<BACK, N_TO, VECTORS, FULL>(
        flow, flow.source + flow.edges.node[e] * flow.source_stride + channel, flow.couplings + e,
        lanes, weight, accum);
  }

  // Added to the row only now: a sum of sums loses fewer digits than one long sum.

#pragma GCC unroll 9
  for (int k = 0; k < N_TO; ++k) {
    T* row = target + flow.rows_to[k] * flow.channels + channel;
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v)
      store<FULL>(row + v * WIDTH, load<FULL>(row + v * WIDTH, lanes) + accum[k][v], lanes);
  }
}

/// All channels of one path: wide tiles, then single vectors, the last of which may be partial.
template <bool BACK, int N_TO, typename T>
void sum_path(const Flow<T>& flow, T* target) {
  constexpr int WIDTH = Simd<T>::WIDTH, VECTORS = tile_vectors(BACK ? 2 * N_TO : N_TO);
  int64_t channel = 0;
  for (; channel + VECTORS * WIDTH <= flow.channels; channel += VECTORS * WIDTH)
    sum_tile<BACK, N_TO, VECTORS, true>(flow, channel, WIDTH, target);
  for (; channel < flow.channels; channel += WIDTH) {
    const int64_t left = flow.channels - channel;
    sum_tile<BACK, N_TO, 1, false>(flow, channel, left < WIDTH ? int(left) : WIDTH, target);
  }
}

template <bool BACK, typename T>
void sum_path_of(int n_to, const Flow<T>& flow, T* target) {
  switch (n_to) {
    case 1: return sum_path<BACK, 1>(flow, target);
    case 3: return sum_path<BACK, 3>(flow, target);
    case 5: return sum_path<BACK, 5>(flow, target);
    case 7: return sum_path<BACK, 7>(flow, target);
    default: return sum_path<BACK, 9>(flow, target);
  }
}

template <bool BACK, typename T>
MS_INLINE void sum_edges(const Shape& shape, const T* source, const Inputs<T>& inputs,
                         const EdgeBlock& edges, T* target) {
  alignas(64) T attrs[MAX_DIM_EDGE * EDGES];
  alignas(64) T couplings[MAX_BLOCK_ROWS * MAX_BLOCK_ROWS * EDGES];
  transpose_attrs(shape, inputs.edge_attrs, edges, attrs);
  for (int b = 0; b < shape.n_blocks; ++b) {
    const PathBlock& block = shape.blocks[b];
    make_couplings<BACK>(block, attrs, couplings);
    const Flow<T> flow{edges,
                       couplings,
                       inputs.path_weights + block.path * shape.channels,
                       shape.n_paths * shape.channels,
                       source,
                       (BACK ? shape.dim_out : shape.dim_in) * shape.channels,
                       shape.channels,
                       BACK ? block.n_out : block.n_in,
                       BACK ? block.rows_out : block.rows_in,
                       BACK ? block.rows_in : block.rows_out};
    sum_path_of<BACK>(BACK ? block.n_in : block.n_out, flow, target);
  }
}

template <typename T>
void sum_messages(const Shape& shape, const Inputs<T>& inputs, const EdgeBlock& edges,
                  T* message_row) {
  sum_edges<false>(shape, inputs.node_feats, inputs, edges, message_row);
}

template <typename T>
void sum_node_cotangents(const Shape& shape, const Inputs<T>& inputs, const T* message_bar,
                         const EdgeBlock& edges, T* node_bar_row) {
  sum_edges<true>(shape, message_bar, inputs, edges, node_bar_row);
}

// ---- cotangents of what belongs to an edge ----

/// One edge, one path, one row of the sender's features.
template <typename T>
struct EdgeRow {
  const T *weights, *feats; /* [channels] */
  const T* message_bar_row; /* [dim_out, channels] */
  const int32_t* rows_out;
  const T* couplings; /* [n_out, EDGES], at this edge */
  int64_t channels;
  T* weights_bar; /* [channels] */
  bool add_weights;
  T* couplings_bar; /* [n_out, EDGES, lanes], at this edge; lanes not yet summed */
};

template <int N_OUT, bool WEIGHTS, bool ATTRS, bool FULL, typename T>
MS_INLINE void edge_row_step(const EdgeRow<T>& row, const T (&coupling)[N_OUT],
                             const T* const (&bar_rows)[N_OUT], int64_t channel, int lanes,
                             Vec<T> (&couplings_bar)[N_OUT]) {
  const Vec<T> feat = load<FULL>(row.feats + channel, lanes);
  Vec<T> weighted, coupled = {};
  if (ATTRS) weighted = load<FULL>(row.weights + channel, lanes) * feat;

  // Contract the message cotangent with the couplings, and with weight * feature.

#pragma GCC unroll 9
  for (int k = 0; k < N_OUT; ++k) {
    const Vec<T> bar = load<FULL>(bar_rows[k] + channel, lanes);
    if (WEIGHTS) coupled += coupling[k] * bar;
    if (ATTRS) couplings_bar[k] += weighted * bar;
  }
  if (!WEIGHTS) return;
  Vec<T> sum = coupled * feat;
  if (row.add_weights) sum += load<FULL>(row.weights_bar + channel, lanes);
  store<FULL>(row.weights_bar + channel, sum, lanes);
}

template <int N_OUT, bool WEIGHTS, bool ATTRS, typename T>
MS_INLINE void edge_row(const EdgeRow<T>& row) {
  constexpr int WIDTH = Simd<T>::WIDTH;
  T coupling[N_OUT];
  const T* bar_rows[N_OUT];
  Vec<T> couplings_bar[N_OUT];
#pragma GCC unroll 9
  for (int k = 0; k < N_OUT; ++k) {
    coupling[k] = WEIGHTS ? row.couplings[k * EDGES] : T(0);
    bar_rows[k] = row.message_bar_row + row.rows_out[k] * row.channels;
    couplings_bar[k] = Vec<T>{};
  }
  int64_t channel = 0;
  for (; channel + WIDTH <= row.channels; channel += WIDTH)
    edge_row_step<N_OUT, WEIGHTS, ATTRS, true>(row, coupling, bar_rows, channel, WIDTH,
                                               couplings_bar);
  if (channel < row.channels)
    edge_row_step<N_OUT, WEIGHTS, ATTRS, false>(row, coupling, bar_rows, channel,
                                                int(row.channels - channel), couplings_bar);
  if (ATTRS)
#pragma GCC unroll 9
    for (int k = 0; k < N_OUT; ++k)
      store_few_lanes<VECTOR_BYTES>(row.couplings_bar + k * EDGES * Lanes<T>::COUNT,
                                    couplings_bar[k]);
}

/// What the kernels of one block of edges share.
template <typename T>
struct EdgePass {
  const Shape& shape;
  const Inputs<T>& inputs;
  const T* message_bar_row;
  const EdgeBlock& edges;
  const EdgeCotangents<T>& target;
  const T* couplings; /* [n_in, n_out, EDGES] */
  T* couplings_bar;   /* likewise, with lanes */
};

template <int N_OUT, bool WEIGHTS, bool ATTRS, typename T>
void edge_path(const EdgePass<T>& pass, const PathBlock& block) {
  const Shape& shape = pass.shape;
  for (int e = 0; e < pass.edges.count; ++e) {
    const int64_t column = (pass.edges.edge[e] * shape.n_paths + block.path) * shape.channels;
    const T* feats = pass.inputs.node_feats + pass.edges.node[e] * shape.dim_in * shape.channels;
    for (int i = 0; i < block.n_in; ++i)
      edge_row<N_OUT, WEIGHTS, ATTRS>(
          EdgeRow<T>{ATTRS ? pass.inputs.path_weights + column : nullptr,
                     feats + block.rows_in[i] * shape.channels, pass.message_bar_row,
                     block.rows_out, pass.couplings + i * N_OUT * EDGES + e, shape.channels,
                     WEIGHTS ? pass.target.path_weights + column : nullptr,
                     pass.target.add_weights || !block.first_of_path || i > 0,
                     pass.couplings_bar + (i * N_OUT * EDGES + e) * Lanes<T>::COUNT});
  }
}

template <bool WEIGHTS, bool ATTRS, typename T>
void edge_path_of(const EdgePass<T>& pass, const PathBlock& block) {
  switch (block.n_out) {
    case 1: return edge_path<1, WEIGHTS, ATTRS>(pass, block);
    case 3: return edge_path<3, WEIGHTS, ATTRS>(pass, block);
    case 5: return edge_path<5, WEIGHTS, ATTRS>(pass, block);
    case 7: return edge_path<7, WEIGHTS, ATTRS>(pass, block);
    default: return edge_path<9, WEIGHTS, ATTRS>(pass, block);
  }
}

/// attrs_bar [dim_edge, EDGES, lanes] += couplings_bar, contracted with the terms.
template <typename T>
MS_INLINE void add_attrs_cotangents(const PathBlock& block, int n_edges,
                                    const T* __restrict__ couplings_bar,
                                    T* __restrict__ attrs_bar) {
  constexpr int SIZE = EDGES * Lanes<T>::COUNT;
  for (int k = 0; k < block.n_terms; ++k) {
    const BlockTerm& term = block.terms[k];
    const T value = T(term.value);
    const T* source = couplings_bar + (term.in * block.n_out + term.out) * SIZE;
    T* target = attrs_bar + term.edge * SIZE;
    for (int i = 0; i < n_edges * Lanes<T>::COUNT; ++i) target[i] += value * source[i];
  }
}

/// Sum the lanes, and add that to the attributes' cotangents.
template <typename T>
MS_INLINE void store_attrs_cotangents(const Shape& shape, const EdgeBlock& edges,
                                      const T* attrs_bar, T* target) {
  constexpr int LANES = Lanes<T>::COUNT;
  for (int e = 0; e < edges.count; ++e)
    for (int m = 0; m < shape.dim_edge; ++m) {
      const T* lane = attrs_bar + (m * EDGES + e) * LANES;
      const T sum = LANES == 2 ? lane[0] + lane[1] : (lane[0] + lane[2]) + (lane[1] + lane[3]);
      target[edges.edge[e] * shape.dim_edge + m] += sum;
    }
}

template <typename T>
void edge_cotangents(const Shape& shape, const Inputs<T>& inputs, const T* message_bar_row,
                     const EdgeBlock& edges, const EdgeCotangents<T>& target) {
  constexpr int SIZE = EDGES * Lanes<T>::COUNT;
  alignas(64) T attrs[MAX_DIM_EDGE * EDGES], attrs_bar[MAX_DIM_EDGE * SIZE];
  alignas(64) T couplings[MAX_BLOCK_ROWS * MAX_BLOCK_ROWS * EDGES];
  alignas(64) T couplings_bar[MAX_BLOCK_ROWS * MAX_BLOCK_ROWS * SIZE];
  const EdgePass<T> pass{shape, inputs, message_bar_row, edges, target, couplings, couplings_bar};
  if (target.path_weights) transpose_attrs(shape, inputs.edge_attrs, edges, attrs);
  for (int i = 0; i < shape.dim_edge * SIZE; ++i) attrs_bar[i] = T(0);
  for (int b = 0; b < shape.n_blocks; ++b) {
    const PathBlock& block = shape.blocks[b];
    if (target.path_weights) make_couplings<false>(block, attrs, couplings);
    if (target.path_weights && target.edge_attrs)
      edge_path_of<true, true>(pass, block);
    else if (target.path_weights)
      edge_path_of<true, false>(pass, block);
    else
      edge_path_of<false, true>(pass, block);
    if (target.edge_attrs) add_attrs_cotangents(block, edges.count, couplings_bar, attrs_bar);
  }
  if (target.edge_attrs) store_attrs_cotangents(shape, edges, attrs_bar, target.edge_attrs);
}

template <typename T>
const Kernels<T>& kernels() {
  static constexpr Kernels<T> table{sum_messages<T>, sum_node_cotangents<T>, edge_cotangents<T>};
  return table;
}

template const Kernels<float>& kernels<float>();
template const Kernels<double>& kernels<double>();

}  // namespace ISA
}  // namespace mace_stream
