// Public C face of the convolution: raw pointers in, raw pointers out, on CPU and CUDA.
//
// The operator: for receiver i, output row m and channel c
//
//   message[i, m, c] = sum over edges e of i, terms k with out[k] = m of
//       value[k] * path_weights[e, path[k], c] * node_feats[sender[e], in[k], c] * edge_attrs[e,
//       edge[k]]
//
// It is linear in each of its three inputs. All arrays are dense, channel-fastest, and of the
// plan's type. Calls enqueue on `stream` and never synchronize; on CPU they return when done.
// Nothing is allocated: scratch is handed in. Every call returns null, or a message that stays
// valid until the thread's next call.

#ifndef MACE_STREAM_CONV_H
#define MACE_STREAM_CONV_H

#include <stdint.h>

#if defined(__GNUC__)
#define MACE_STREAM_API __attribute__((visibility("default")))
#else
#define MACE_STREAM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/// A convolution's static tables, and its compiled kernels where a GPU is used.
typedef struct ms_conv_plan ms_conv_plan;

/// One nonzero coupling.
typedef struct {
  int32_t in, edge, path, out;
} ms_term;

/// Sizes of the whole operator.
typedef struct {
  int32_t dim_in, dim_edge, dim_out, n_paths, n_terms;
  int32_t is_double; /* 0: float, 1: double */
} ms_conv_dims;

/// The graph of one call. Edges are grouped by receiver where `indptr` is given; where `receiver`
/// is given instead, they may stand in any order and outputs per receiver are summed atomically.
typedef struct {
  int64_t n_nodes, n_receivers, n_edges, channels;
  const int64_t* indptr;        /* [n_receivers + 1], or null */
  const int32_t* sender;        /* [n_edges] */
  const int32_t* receiver;      /* [n_edges], or null where `indptr` says it */
  const int64_t* sender_indptr; /* [n_nodes + 1], only for the sender-owned pass, else null */
  const int64_t* edge_of;       /* [n_edges] edges sorted by sender, likewise */
} ms_graph;

/// Where a call runs. `device` is -1 for the CPU, else a CUDA device number.
typedef struct {
  int32_t device;
  void* stream; /* CUstream */
} ms_place;

enum { MS_FORWARD, MS_BACKWARD, MS_BACKWARD_SENDER, MS_DOUBLE_BACKWARD };

/// Which variant of a pass: edges in any order (graph.receiver instead of graph.indptr), and
/// whether the pass itself adds node cotangents.
typedef struct {
  int32_t pass, any_order, nodes;
} ms_variant;

/// One compiled kernel: a variant for one group of paths.
typedef struct {
  const char* name;     /* of the function in the module */
  int32_t width;        /* channels per thread */
  int32_t threads;      /* per block */
  int32_t shared_bytes; /* per block */
} ms_kernel;

/// Copies the tables. Null on failure. Plans live until ms_conv_free.
MACE_STREAM_API ms_conv_plan* ms_conv_create(const ms_conv_dims* dims, const ms_term* terms,
                                             const double* values);
MACE_STREAM_API void ms_conv_free(ms_conv_plan* plan);

/// Loads a module compiled for this device; its kernels, one per group, run in the order given.
/// `sum_tiles` names the module's kernel that adds up tiles, or is null where the pass has none.
MACE_STREAM_API const char* ms_conv_load_cuda(ms_conv_plan* plan, int32_t device,
                                              ms_variant variant, const void* module_image,
                                              const ms_kernel* kernels, int32_t n_kernels,
                                              const char* sum_tiles);

/// Summands of edge_attrs_bar that a backward pass writes before they are added up: 1 on CPU.
/// 0 where the variant is not loaded.
MACE_STREAM_API int64_t ms_conv_tiles(const ms_conv_plan* plan, int32_t device, ms_variant variant,
                                      int64_t channels);

/// message [n_receivers, dim_out, channels] is overwritten.
MACE_STREAM_API const char* ms_conv_forward(ms_conv_plan* plan, ms_place place,
                                            const ms_graph* graph, const void* node_feats,
                                            const void* edge_attrs, const void* path_weights,
                                            void* message);

/// Cotangents of the three inputs, all overwritten. `node_feats_bar` may be null where nobody wants
/// it. Where the graph has `sender_indptr`, node cotangents come from the sender-owned pass (always
/// on CPU). `attrs_scratch` is [tiles, n_edges, dim_edge]; unused, and may be null, where tiles
/// is 1.
MACE_STREAM_API const char* ms_conv_backward(ms_conv_plan* plan, ms_place place,
                                             const ms_graph* graph, const void* node_feats,
                                             const void* edge_attrs, const void* path_weights,
                                             const void* message_bar, void* node_feats_bar,
                                             void* edge_attrs_bar, void* path_weights_bar,
                                             void* attrs_scratch);

/// VJP of ms_conv_backward. `*_ct` are cotangents of its three outputs (null stands for zero); the
/// four gradients are overwritten. On CUDA `message_bar_grad` may be null: nobody wants it.
MACE_STREAM_API const char* ms_conv_double_backward(
    ms_conv_plan* plan, ms_place place, const ms_graph* graph, const void* node_feats,
    const void* edge_attrs, const void* path_weights, const void* message_bar,
    const void* node_bar_ct, const void* attrs_bar_ct, const void* weights_bar_ct,
    void* node_feats_grad, void* edge_attrs_grad, void* path_weights_grad, void* message_bar_grad,
    void* attrs_scratch);

#ifdef __cplusplus
}
#endif

#endif
