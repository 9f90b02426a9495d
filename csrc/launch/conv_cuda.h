// Launches a convolution's compiled passes on a CUDA stream. Never synchronizes, never allocates
// device memory.

#ifndef MACE_STREAM_CONV_CUDA_H
#define MACE_STREAM_CONV_CUDA_H

#include <mace_stream/conv.h>

#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "cuda_driver.h"

namespace mace_stream {

/// The three arrays of a set: the inputs, or their cotangents. Layout as EdgeArrays in
/// conv_common.cuh.
struct ConvArrays {
  const void* node_feats;
  const void* edge_attrs;
  const void* path_weights;
};

/// Where the three gradients go; `attrs_scratch` holds the tiles before they are added up.
struct ConvGradients {
  void* node_feats;
  void* edge_attrs;
  void* path_weights;
  void* attrs_scratch;
};

/// The kernels of one plan, by device and variant. Throws std::runtime_error on failure.
class ConvCuda {
 public:
  explicit ConvCuda(const ms_conv_dims& dims) : dims_(dims) {}

  void load(int device, ms_variant variant, const void* image, const ms_kernel* kernels,
            int n_kernels, const char* sum_tiles);
  std::int64_t tiles(int device, ms_variant variant, std::int64_t channels) const;

  void forward(ms_place place, const ms_graph& graph, ConvArrays inputs, void* message) const;
  void backward(ms_place place, const ms_graph& graph, ConvArrays inputs, const void* message_bar,
                ConvGradients gradients) const;
  void double_backward(ms_place place, const ms_graph& graph, ConvArrays inputs,
                       ConvArrays cotangents, const void* message_bar, ConvGradients gradients,
                       void* message_bar_grad) const;

 private:
  struct Kernel {
    CUfunction function;
    int width, threads, shared_bytes;
  };
  struct Variant {
    std::vector<Kernel> groups;
    CUfunction sum_tiles;
  };
  using Key = std::tuple<int, int, int, int>;  // device, pass, any_order, nodes

  const Variant* find(int device, ms_variant variant) const;
  const Variant& need(int device, ms_variant variant) const;
  void launch_groups(const Variant& variant, CUstream stream, std::int64_t n_rows,
                     std::int64_t channels, void** arguments) const;
  void add_up_tiles(const Variant& variant, CUstream stream, std::int64_t n_tiles,
                    std::int64_t n_edges, const ConvGradients& gradients) const;
  void add_from_senders(ms_place place, const ms_graph& graph, ConvArrays inputs,
                        const void* message_bar, void* node_feats_bar) const;
  void clear(CUstream stream, void* target, std::int64_t rows, std::int64_t dim,
             std::int64_t channels) const;

  ms_conv_dims dims_;
  std::map<Key, Variant> variants_;
  mutable std::mutex mutex_;
};

}  // namespace mace_stream

#endif
