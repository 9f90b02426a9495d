// Public C face of the inference path on the CPU: the passes of one step, raw pointers in and out.
//
// From positions to dE/d(edge_vec): radial weights come from tables of polynomials, spherical
// harmonics from unit vectors, and nothing per edge is kept but the geometry and its gradient.
// `Real` is float or double, the type that ms_inference_create was told. Arrays are dense, the
// last axis fastest. Every call returns null, or a message that stays valid until the thread's
// next call. One object serves one call at a time: it owns the threads' scratch.

#ifndef MACE_STREAM_INFERENCE_H
#define MACE_STREAM_INFERENCE_H

#include "mace_stream/conv.h"

#ifdef __cplusplus
extern "C" {
#endif

/// A model's static tables.
typedef struct ms_inference ms_inference;

/// Sizes that all layers share. Tables have n_species^2 * n_knots rows: receiver's species slowest,
/// then the sender's, then the interval. Interval k starts at r_0 + k (r_max - r_0) / n_knots.
typedef struct {
  int32_t is_double, n_species, l_max, n_coef; /* n_coef: 4, 6 or 8 */
  int64_t channels, n_hidden, n_knots;
  double r_0, r_max;
  int32_t n_layers;
} ms_inference_sizes;

/// One irrep of a convolution's output: rows start + component * n_paths + path of its terms.
typedef struct {
  int32_t start, dim, n_paths;
} ms_output_block;

/// One layer. `conv.n_paths` is 0 where it has no convolution; that may have channels of its own.
typedef struct {
  ms_conv_dims conv;
  int64_t conv_channels;
  const ms_term* terms; /* [conv.n_terms] */
  const double* values; /* [conv.n_terms] */
  int32_t n_blocks;     /* which cover rows 0 to conv.dim_out in order */
  const ms_output_block* blocks;
  int32_t n_monomials, correlation, dim, dim_out;
  const int32_t* monomials; /* [n_monomials, 1 + correlation]: output row, factors or -1 */
} ms_layer;

/// Screened nuclear repulsion of pairs [n_species, n_species]: V(r) = charge / r *
/// sum_k coefficients[k] * exp(-decays[k] * inverse_length * r) * envelope(r / bond), with MACE's
/// polynomial envelope of order p.
typedef struct {
  const double *charge, *inverse_length, *bond;
  double coefficients[4], decays[4];
  int32_t p;
} ms_repulsion;

/// A neighbor list. Row i, slots first[i] to first[i + 1], belongs to receiver i, which is node i.
typedef struct {
  int64_t n_nodes, n_senders, n_slots;
  const int64_t* first;     /* [n_nodes + 1] */
  const int32_t* node_atom; /* [n_nodes] the receiver's row of the positions */
  const int32_t* slot_atom; /* [n_slots] the sender's */
  const int32_t* slot_node; /* [n_slots] */
  const int32_t* species;   /* [n_senders] */
} ms_nodes;

/// The edges of one step: those of row i are first[i] to first[i] + count[i].
typedef struct {
  int32_t* count;  /* [n_nodes] */
  int32_t* sender; /* [n_slots] node */
  int32_t* row;    /* [n_slots] of the tables */
  void* t;         /* [n_slots] place between knots, 0 to 1 */
  void* dir;       /* [n_slots, 4] unit vector of x[receiver] - x[sender], 1 / length */
  void* grad;      /* [n_slots, 3] dE/d(edge_vec) */
} ms_edges;

/// Receivers first to last - 1.
typedef struct {
  int64_t first, last;
} ms_tile;

/// Copies the tables. Null on failure. `repulsion` may be null.
MACE_STREAM_API ms_inference* ms_inference_create(const ms_inference_sizes* sizes,
                                                  const ms_layer* layers,
                                                  const ms_repulsion* repulsion);
MACE_STREAM_API void ms_inference_free(ms_inference* inference);

/// Finds the edges shorter than r_max at positions x [n_atoms, 3], in the list's order. Overwrites
/// `edges`, with the repulsion's gradient, and node_energy [n_nodes] with half the repulsion.
/// closest[0] becomes the smallest distance below r_0, if there is one.
MACE_STREAM_API const char* ms_inference_edges(ms_inference* inference, const ms_nodes* nodes,
                                               const ms_edges* edges, const double* x,
                                               double* node_energy, double* closest);

/// out[m, i, s, h] = norm[i] * sum over the edges of row i from senders of species s of
/// hidden_h(r) * Y_m; [(l_max + 1)^2, n_nodes, n_species, n_hidden]. `table` is [rows, n_coef,
/// n_hidden]. With `density` [rows, n_coef], norm[i] = 1 / (1 + sum of the row's densities) is
/// written; else both are null and the norm is 1.
MACE_STREAM_API const char* ms_inference_scatter(ms_inference* inference, const ms_nodes* nodes,
                                                 const ms_edges* edges, const void* table,
                                                 const void* density, void* out, void* norm);

/// Adds to edges.grad. `out_bar` is the cotangent of `out`, dot[i] = sum of out_bar * out over
/// everything of receiver i (only with `density`).
MACE_STREAM_API const char* ms_inference_scatter_backward(ms_inference* inference,
                                                          const ms_nodes* nodes,
                                                          const ms_edges* edges, const void* table,
                                                          const void* density, const void* out_bar,
                                                          const void* norm, const void* dot);

/// Convolution of one layer for the receivers of a tile, n = last - first, with the layer's
/// conv_channels. up [dim_in, n_senders, channels]; table [rows, n_paths, n_coef, channels];
/// density as above, norm [n_nodes]. `out` are the output blocks, each [dim, n, n_paths of the
/// block, channels].
MACE_STREAM_API const char* ms_inference_conv(ms_inference* inference, int32_t layer, ms_tile tile,
                                              const ms_nodes* nodes, const ms_edges* edges,
                                              const void* up, const void* table,
                                              const void* density, void* const* out, void* norm);

/// Adds to edges.grad, and to up_bar [dim_in, n_senders, channels] unless that is null. norm and
/// dot are [n_nodes].
MACE_STREAM_API const char* ms_inference_conv_backward(ms_inference* inference, int32_t layer,
                                                       ms_tile tile, const ms_nodes* nodes,
                                                       const ms_edges* edges, const void* up,
                                                       const void* table, const void* density,
                                                       const void* const* out_bar, const void* norm,
                                                       const void* dot, void* up_bar);

/// Symmetric contraction of a tile: out[o, i, c] = sum over monomials k of output o of
/// coefs[species[first + i], k, c] * product of msg[factor, i, c]. species [n_nodes]; coefs
/// [n_species, n_monomials, channels]; msg are dim rows [n, channels]; out is [dim_out, n,
/// channels].
MACE_STREAM_API const char* ms_inference_contract(ms_inference* inference, int32_t layer,
                                                  ms_tile tile, const int32_t* species,
                                                  const void* coefs, const void* const* msg,
                                                  void* out);

/// Overwrites msg with its cotangent, given that of `out`. dot[first + i] becomes the sum of msg
/// times its cotangent, unless `dot` is null.
MACE_STREAM_API const char* ms_inference_contract_backward(ms_inference* inference, int32_t layer,
                                                           ms_tile tile, const int32_t* species,
                                                           const void* coefs, void* const* msg,
                                                           const void* out_bar, void* dot);

/// forces [n_senders, 3] = sums of the gradient, plus at the sender and minus at the receiver;
/// virial [3, 3] = - sum of edge_vec (x) gradient; receiver_virial [n_nodes, 3, 3] and
/// sender_virial [n_senders, 3, 3] its parts by either end, or null. All overwritten.
MACE_STREAM_API const char* ms_inference_forces(ms_inference* inference, const ms_nodes* nodes,
                                                const ms_edges* edges, double* forces,
                                                double* virial, double* receiver_virial,
                                                double* sender_virial);

#ifdef __cplusplus
}
#endif

#endif
