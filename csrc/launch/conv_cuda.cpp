#include "conv_cuda.h"

#include <stdexcept>

namespace mace_stream {
namespace {

constexpr std::int64_t WARP = 32;
constexpr std::int64_t EDGES_PER_CHUNK = 32;  // as in conv_common.cuh
constexpr int MAX_DYNAMIC_SHARED_SIZE_BYTES = 8;
constexpr unsigned SUM_TILES_THREADS = 128;

/// Layout of `Graph` in conv_common.cuh.
struct KernelGraph {
  std::int64_t n_rows, n_edges, channels;
  const std::int64_t* indptr;
  const std::int32_t* sender;
  const std::int32_t* receiver;
  const std::int64_t* edge_of;
};

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Rows are receivers, or chunks of edges where the graph has no `indptr`.
KernelGraph by_receiver(const ms_graph& graph) {
  const bool any_order = !graph.indptr;
  const std::int64_t rows =
      any_order ? ceil_div(graph.n_edges, EDGES_PER_CHUNK) : graph.n_receivers;
  return {rows, graph.n_edges, graph.channels, graph.indptr, graph.sender, graph.receiver, nullptr};
}

KernelGraph by_sender(const ms_graph& graph) {
  return {graph.n_nodes, graph.n_edges,  graph.channels, graph.sender_indptr,
          graph.sender,  graph.receiver, graph.edge_of};
}

}  // namespace

void ConvCuda::load(int device, ms_variant variant, const void* image, const ms_kernel* kernels,
                    int n_kernels, const char* sum_tiles) {
  const CudaDriver& driver = CudaDriver::get();
  const ContextScope context(driver, device);
  CUmodule module;
  driver.check(driver.load_module(&module, image), "loading compiled kernels");
  Variant loaded{{}, nullptr};
  for (int i = 0; i < n_kernels; ++i) {
    const ms_kernel& kernel = kernels[i];
    CUfunction function;
    driver.check(driver.get_function(&function, module, kernel.name), kernel.name);
    driver.check(driver.set_attribute(function, MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.shared_bytes),
                 "reserving shared memory");
    loaded.groups.push_back({function, kernel.width, kernel.threads, kernel.shared_bytes});
  }
  if (sum_tiles)
    driver.check(driver.get_function(&loaded.sum_tiles, module, sum_tiles), "finding sum_tiles");
  const std::lock_guard<std::mutex> lock(mutex_);
  variants_[{device, variant.pass, variant.any_order, variant.nodes}] = std::move(loaded);
}

const ConvCuda::Variant* ConvCuda::find(int device, ms_variant variant) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = variants_.find({device, variant.pass, variant.any_order, variant.nodes});
  return found == variants_.end() ? nullptr : &found->second;
}

const ConvCuda::Variant& ConvCuda::need(int device, ms_variant variant) const {
  const Variant* found = find(device, variant);
  if (!found)
    throw std::runtime_error("this pass was not compiled for CUDA device " +
                             std::to_string(device));
  return *found;
}

std::int64_t ConvCuda::tiles(int device, ms_variant variant, std::int64_t channels) const {
  const Variant* found = find(device, variant);
  return found ? ceil_div(channels, WARP * found->groups.front().width) : 0;
}

void ConvCuda::forward(ms_place place, const ms_graph& graph, ConvArrays inputs,
                       void* message) const {
  const ContextScope context(CudaDriver::get(), place.device);
  const auto stream = static_cast<CUstream>(place.stream);
  KernelGraph rows = by_receiver(graph);
  const bool any_order = !graph.indptr;
  if (any_order) clear(stream, message, graph.n_receivers, dims_.dim_out, graph.channels);
  void* arguments[] = {&rows, &inputs, &message};
  launch_groups(need(place.device, {MS_FORWARD, any_order, 1}), stream, rows.n_rows, graph.channels,
                arguments);
}

void ConvCuda::backward(ms_place place, const ms_graph& graph, ConvArrays inputs,
                        const void* message_bar, ConvGradients gradients) const {
  const ContextScope context(CudaDriver::get(), place.device);
  const auto stream = static_cast<CUstream>(place.stream);
  KernelGraph rows = by_receiver(graph);
  const bool nodes_here = gradients.node_feats && !graph.sender_indptr;
  if (gradients.node_feats)
    clear(stream, gradients.node_feats, graph.n_nodes, dims_.dim_in, graph.channels);
  if (graph.n_edges == 0) return;

  const Variant& variant = need(place.device, {MS_BACKWARD, !graph.indptr, nodes_here});
  const std::int64_t n_tiles = ceil_div(graph.channels, WARP * variant.groups.front().width);
  void* attrs = n_tiles > 1 ? gradients.attrs_scratch : gradients.edge_attrs;
  void* arguments[] = {
      &rows, &inputs, &message_bar, &gradients.node_feats, &attrs, &gradients.path_weights};
  launch_groups(variant, stream, rows.n_rows, graph.channels, arguments);
  add_up_tiles(variant, stream, n_tiles, graph.n_edges, gradients);
  if (gradients.node_feats && !nodes_here)
    add_from_senders(place, graph, inputs, message_bar, gradients.node_feats);
}

void ConvCuda::double_backward(ms_place place, const ms_graph& graph, ConvArrays inputs,
                               ConvArrays cotangents, const void* message_bar,
                               ConvGradients gradients, void* message_bar_grad) const {
  const ContextScope context(CudaDriver::get(), place.device);
  const auto stream = static_cast<CUstream>(place.stream);
  KernelGraph rows = by_receiver(graph);
  const bool any_order = !graph.indptr, nodes_here = !graph.sender_indptr;
  clear(stream, gradients.node_feats, graph.n_nodes, dims_.dim_in, graph.channels);
  if (message_bar_grad && (any_order || graph.n_edges == 0))
    clear(stream, message_bar_grad, graph.n_receivers, dims_.dim_out, graph.channels);
  if (graph.n_edges == 0) return;

  const Variant& variant = need(place.device, {MS_DOUBLE_BACKWARD, any_order, nodes_here});
  const std::int64_t n_tiles = ceil_div(graph.channels, WARP * variant.groups.front().width);
  void* attrs = n_tiles > 1 ? gradients.attrs_scratch : gradients.edge_attrs;
  void* arguments[] = {&rows,
                       &inputs,
                       &cotangents,
                       &message_bar,
                       &gradients.node_feats,
                       &attrs,
                       &gradients.path_weights,
                       &message_bar_grad};
  launch_groups(variant, stream, rows.n_rows, graph.channels, arguments);
  add_up_tiles(variant, stream, n_tiles, graph.n_edges, gradients);
  if (nodes_here) return;

  // Node gradients are what the two other cotangents couple to, one after the other.

  if (cotangents.edge_attrs)
    add_from_senders(place, graph, {nullptr, cotangents.edge_attrs, inputs.path_weights},
                     message_bar, gradients.node_feats);
  if (cotangents.path_weights)
    add_from_senders(place, graph, {nullptr, inputs.edge_attrs, cotangents.path_weights},
                     message_bar, gradients.node_feats);
}

void ConvCuda::add_from_senders(ms_place place, const ms_graph& graph, ConvArrays inputs,
                                const void* message_bar, void* node_feats_bar) const {
  KernelGraph rows = by_sender(graph);
  void* arguments[] = {&rows, &inputs, &message_bar, &node_feats_bar};
  launch_groups(need(place.device, {MS_BACKWARD_SENDER, 0, 1}), static_cast<CUstream>(place.stream),
                rows.n_rows, graph.channels, arguments);
}

void ConvCuda::launch_groups(const Variant& variant, CUstream stream, std::int64_t n_rows,
                             std::int64_t channels, void** arguments) const {
  const CudaDriver& driver = CudaDriver::get();
  for (const Kernel& kernel : variant.groups) {
    if (channels % kernel.width)
      throw std::runtime_error("this pass was compiled for another number of channels than " +
                               std::to_string(channels));
    const std::int64_t warps = n_rows * ceil_div(channels, WARP * kernel.width);
    const std::int64_t blocks = ceil_div(warps * WARP, kernel.threads);
    if (blocks == 0) continue;
    if (blocks > 2147483647)
      throw std::runtime_error("the graph needs more than 2^31 blocks; split it into parts");
    driver.check(driver.launch(kernel.function, static_cast<unsigned>(blocks), 1, 1, kernel.threads,
                               1, 1, kernel.shared_bytes, stream, arguments, nullptr),
                 "launching a pass of the convolution");
  }
}

void ConvCuda::add_up_tiles(const Variant& variant, CUstream stream, std::int64_t n_tiles,
                            std::int64_t n_edges, const ConvGradients& gradients) const {
  std::int64_t size = n_edges * dims_.dim_edge;
  if (n_tiles <= 1 || size == 0) return;
  const void* tiles = gradients.attrs_scratch;
  void* sum = gradients.edge_attrs;
  void* arguments[] = {&n_tiles, &size, &tiles, &sum};
  const CudaDriver& driver = CudaDriver::get();
  const auto blocks = static_cast<unsigned>(ceil_div(size, SUM_TILES_THREADS));
  driver.check(driver.launch(variant.sum_tiles, blocks, 1, 1, SUM_TILES_THREADS, 1, 1, 0, stream,
                             arguments, nullptr),
               "adding up tiles");
}

void ConvCuda::clear(CUstream stream, void* target, std::int64_t rows, std::int64_t dim,
                     std::int64_t channels) const {
  const std::size_t bytes = rows * dim * channels * (dims_.is_double ? 8 : 4);
  if (bytes == 0) return;
  const CudaDriver& driver = CudaDriver::get();
  driver.check(driver.memset(reinterpret_cast<CUdeviceptr>(target), 0, bytes, stream),
               "clearing an output");
}

}  // namespace mace_stream
