// The C face: checks the arguments, then calls the CPU passes in the plan's type.

#include "cpu/check.h"
#include "cpu/passes.h"
#include "launch/conv_cuda_face.h"

namespace {

using mace_stream::Argument;
using mace_stream::Inputs;
using mace_stream::message_of;
using mace_stream::cpu::Cotangents;

bool on_cpu(const ms_place& place) { return place.device < 0; }

/// Numbers in each array of a call.
struct Sizes {
  int64_t node_feats, edge_attrs, path_weights, message;

  Sizes(const ms_conv_dims& dims, const ms_graph& graph)
      : node_feats(graph.n_nodes * dims.dim_in * graph.channels),
        edge_attrs(graph.n_edges * dims.dim_edge),
        path_weights(graph.n_edges * dims.n_paths * graph.channels),
        message(graph.n_receivers * dims.dim_out * graph.channels) {}
};

template <typename T>
Inputs<T> inputs_of(const void* node_feats, const void* edge_attrs, const void* path_weights) {
  return {static_cast<const T*>(node_feats), static_cast<const T*>(edge_attrs),
          static_cast<const T*>(path_weights)};
}

template <typename T>
Cotangents<T> cotangents_of(void* node_feats, void* edge_attrs, void* path_weights) {
  return {static_cast<T*>(node_feats), static_cast<T*>(edge_attrs), static_cast<T*>(path_weights)};
}

/// Calls `pass` with a number of the plan's type.
template <typename Pass>
void in_type_of(const ms_conv_plan& plan, const Pass& pass) {
  if (plan.dims.is_double)
    pass(double());
  else
    pass(float());
}

const char* check_cpu(const ms_graph& graph, bool by_sender) {
  const char* error = mace_stream::check_graph(graph);
  return error || !by_sender ? error : mace_stream::check_sender_rows(graph);
}

}  // namespace

const char* ms_conv_load_cuda(ms_conv_plan* plan, int32_t device, ms_variant variant,
                              const void* module_image, const ms_kernel* kernels, int32_t n_kernels,
                              const char* sum_tiles) {
  return message_of(
      [&] { plan->cuda.load(device, variant, module_image, kernels, n_kernels, sum_tiles); });
}

int64_t ms_conv_tiles(const ms_conv_plan* plan, int32_t device, ms_variant variant,
                      int64_t channels) {
  return device < 0 ? 1 : plan->cuda.tiles(device, variant, channels);
}

const char* ms_conv_forward(ms_conv_plan* plan, ms_place place, const ms_graph* graph,
                            const void* node_feats, const void* edge_attrs,
                            const void* path_weights, void* message) {
  const char* error = mace_stream::check_sizes(plan, graph);
  if (error) return error;
  const Sizes sizes(plan->dims, *graph);
  error = mace_stream::check_arguments({{"node_feats", node_feats, sizes.node_feats},
                                        {"edge_attrs", edge_attrs, sizes.edge_attrs},
                                        {"path_weights", path_weights, sizes.path_weights},
                                        {"message", message, sizes.message}});
  if (error) return error;
  if (!on_cpu(place))
    return message_of([&] {
      plan->cuda.forward(place, *graph, {node_feats, edge_attrs, path_weights}, message);
    });
  error = check_cpu(*graph, false);
  if (error) return error;
  in_type_of(*plan, [&](auto number) {
    using T = decltype(number);
    const auto inputs = inputs_of<T>(node_feats, edge_attrs, path_weights);
    mace_stream::cpu::forward(*plan, *graph, inputs, static_cast<T*>(message));
  });
  return nullptr;
}

const char* ms_conv_backward(ms_conv_plan* plan, ms_place place, const ms_graph* graph,
                             const void* node_feats, const void* edge_attrs,
                             const void* path_weights, const void* message_bar,
                             void* node_feats_bar, void* edge_attrs_bar, void* path_weights_bar,
                             void* attrs_scratch) {
  const char* error = mace_stream::check_sizes(plan, graph);
  if (error) return error;
  const Sizes sizes(plan->dims, *graph);
  error =
      mace_stream::check_arguments({{"node_feats", node_feats, sizes.node_feats},
                                    {"edge_attrs", edge_attrs, sizes.edge_attrs},
                                    {"path_weights", path_weights, sizes.path_weights},
                                    {"message_bar", message_bar, sizes.message},
                                    {"edge_attrs_bar", edge_attrs_bar, sizes.edge_attrs},
                                    {"path_weights_bar", path_weights_bar, sizes.path_weights}});
  if (error) return error;
  if (!on_cpu(place))
    return message_of([&] {
      plan->cuda.backward(place, *graph, {node_feats, edge_attrs, path_weights}, message_bar,
                          {node_feats_bar, edge_attrs_bar, path_weights_bar, attrs_scratch});
    });
  error = check_cpu(*graph, node_feats_bar != nullptr);
  if (error) return error;
  in_type_of(*plan, [&](auto number) {
    using T = decltype(number);
    mace_stream::cpu::backward(*plan, *graph, inputs_of<T>(node_feats, edge_attrs, path_weights),
                               static_cast<const T*>(message_bar),
                               cotangents_of<T>(node_feats_bar, edge_attrs_bar, path_weights_bar));
  });
  return nullptr;
}

const char* ms_conv_double_backward(ms_conv_plan* plan, ms_place place, const ms_graph* graph,
                                    const void* node_feats, const void* edge_attrs,
                                    const void* path_weights, const void* message_bar,
                                    const void* node_bar_ct, const void* attrs_bar_ct,
                                    const void* weights_bar_ct, void* node_feats_grad,
                                    void* edge_attrs_grad, void* path_weights_grad,
                                    void* message_bar_grad, void* attrs_scratch) {
  const char* error = mace_stream::check_sizes(plan, graph);
  if (error) return error;
  const Sizes sizes(plan->dims, *graph);
  error =
      mace_stream::check_arguments({{"node_feats", node_feats, sizes.node_feats},
                                    {"edge_attrs", edge_attrs, sizes.edge_attrs},
                                    {"path_weights", path_weights, sizes.path_weights},
                                    {"message_bar", message_bar, sizes.message},
                                    {"edge_attrs_grad", edge_attrs_grad, sizes.edge_attrs},
                                    {"path_weights_grad", path_weights_grad, sizes.path_weights}});
  if (error) return error;
  if (!on_cpu(place))
    return message_of([&] {
      plan->cuda.double_backward(
          place, *graph, {node_feats, edge_attrs, path_weights},
          {node_bar_ct, attrs_bar_ct, weights_bar_ct}, message_bar,
          {node_feats_grad, edge_attrs_grad, path_weights_grad, attrs_scratch}, message_bar_grad);
    });
  error = mace_stream::check_arguments({{"message_bar_grad", message_bar_grad, sizes.message}});
  if (error) return error;
  error = check_cpu(*graph, node_feats_grad != nullptr);
  if (error) return error;
  in_type_of(*plan, [&](auto number) {
    using T = decltype(number);
    mace_stream::cpu::double_backward(
        *plan, *graph, inputs_of<T>(node_feats, edge_attrs, path_weights),
        static_cast<const T*>(message_bar), inputs_of<T>(node_bar_ct, attrs_bar_ct, weights_bar_ct),
        cotangents_of<T>(node_feats_grad, edge_attrs_grad, path_weights_grad),
        static_cast<T*>(message_bar_grad));
  });
  return nullptr;
}
