// The C face of the inference path: checks the arguments, then calls the passes in the right type.

#include "../launch/conv_cuda_face.h"
#include "check.h"
#include "inference_passes.h"

namespace {

namespace cpu = mace_stream::cpu;
using mace_stream::check_arguments;
using mace_stream::message_of;

const char* check_object(const ms_inference* inference) {
  return inference ? nullptr : "inference: expected what ms_inference_create returned, got null";
}

const char* check_graph(const ms_inference* inference, const ms_nodes* nodes,
                        const ms_edges* edges) {
  if (const char* error = check_object(inference)) return error;
  if (!nodes || !edges) return "nodes, edges: expected structs, got null";
  if (nodes->n_nodes < 0 || nodes->n_senders < nodes->n_nodes || nodes->n_slots < 0)
    return "nodes: expected 0 <= n_nodes <= n_senders and 0 <= n_slots";
  const int64_t n_nodes = nodes->n_nodes, n_slots = nodes->n_slots;
  return check_arguments({{"nodes.first", nodes->first, n_nodes},
                          {"nodes.node_atom", nodes->node_atom, n_nodes},
                          {"nodes.slot_atom", nodes->slot_atom, n_slots},
                          {"nodes.slot_node", nodes->slot_node, n_slots},
                          {"nodes.species", nodes->species, nodes->n_senders},
                          {"edges.count", edges->count, n_nodes},
                          {"edges.sender", edges->sender, n_slots},
                          {"edges.row", edges->row, n_slots},
                          {"edges.t", edges->t, n_slots},
                          {"edges.dir", edges->dir, 4 * n_slots},
                          {"edges.grad", edges->grad, 3 * n_slots}});
}

const char* check_layer(const ms_inference* inference, int32_t layer, ms_tile tile, bool conv) {
  if (const char* error = check_object(inference)) return error;
  if (layer < 0 || layer >= int32_t(inference->layers.size()))
    return "layer: expected one of those that ms_inference_create was given";
  if (conv && !inference->layers[layer].conv.plan) return "layer: expected one with a convolution";
  if (tile.first < 0 || tile.last < tile.first) return "tile: expected 0 <= first <= last";
  return nullptr;
}

/// Several arrays that are needed where n > 0.
const char* check_arrays(const char* name, const void* const* arrays, int32_t n_arrays, int64_t n) {
  if (const char* error = check_arguments({{name, arrays, n}})) return error;
  for (int32_t k = 0; n > 0 && k < n_arrays; ++k)
    if (const char* error = check_arguments({{name, arrays[k], n}})) return error;
  return nullptr;
}

/// norm and dot come with a density and not without.
const char* check_density(const ms_nodes& nodes, const void* density, const void* norm,
                          const void* dot) {
  if (!density) return nullptr;
  return check_arguments({{"norm", norm, nodes.n_nodes}, {"dot", dot, nodes.n_nodes}});
}

template <typename T>
cpu::Radial<T> radial_of(const void* table, const void* density, const void* norm,
                         const void* dot) {
  return {static_cast<const T*>(table), static_cast<const T*>(density),
          density ? static_cast<T*>(const_cast<void*>(norm)) : nullptr, static_cast<const T*>(dot)};
}

/// Calls `pass` with a number of the object's type; exceptions become messages.
template <typename Pass>
const char* run(const ms_inference& inference, const Pass& pass) {
  return message_of([&] {
    if (inference.sizes.is_double)
      pass(double());
    else
      pass(float());
  });
}

}  // namespace

const char* ms_inference_edges(ms_inference* inference, const ms_nodes* nodes,
                               const ms_edges* edges, const double* x, double* node_energy,
                               double* closest) {
  if (const char* error = check_graph(inference, nodes, edges)) return error;
  if (const char* error = check_arguments({{"x", x, nodes->n_nodes},
                                           {"node_energy", node_energy, nodes->n_nodes},
                                           {"closest", closest, 1}}))
    return error;
  return run(*inference, [&](auto number) {
    cpu::find_edges<decltype(number)>(*inference, *nodes, *edges, x, node_energy, closest);
  });
}

const char* ms_inference_scatter(ms_inference* inference, const ms_nodes* nodes,
                                 const ms_edges* edges, const void* table, const void* density,
                                 void* out, void* norm) {
  if (const char* error = check_graph(inference, nodes, edges)) return error;
  if (const char* error = check_arguments({{"table", table, 1}, {"out", out, nodes->n_nodes}}))
    return error;
  if (const char* error = check_density(*nodes, density, norm, norm)) return error;
  return run(*inference, [&](auto number) {
    using T = decltype(number);
    cpu::scatter(*inference, *nodes, *edges, radial_of<T>(table, density, norm, nullptr),
                 static_cast<T*>(out));
  });
}

const char* ms_inference_scatter_backward(ms_inference* inference, const ms_nodes* nodes,
                                          const ms_edges* edges, const void* table,
                                          const void* density, const void* out_bar,
                                          const void* norm, const void* dot) {
  if (const char* error = check_graph(inference, nodes, edges)) return error;
  if (const char* error =
          check_arguments({{"table", table, 1}, {"out_bar", out_bar, nodes->n_nodes}}))
    return error;
  if (const char* error = check_density(*nodes, density, norm, dot)) return error;
  return run(*inference, [&](auto number) {
    using T = decltype(number);
    cpu::scatter_backward(*inference, *nodes, *edges, radial_of<T>(table, density, norm, dot),
                          static_cast<const T*>(out_bar));
  });
}

const char* ms_inference_conv(ms_inference* inference, int32_t layer, ms_tile tile,
                              const ms_nodes* nodes, const ms_edges* edges, const void* up,
                              const void* table, const void* density, void* const* out,
                              void* norm) {
  if (const char* error = check_graph(inference, nodes, edges)) return error;
  if (const char* error = check_layer(inference, layer, tile, true)) return error;
  if (tile.last > nodes->n_nodes) return "tile: expected receivers that exist";
  if (const char* error = check_arguments({{"up", up, nodes->n_senders}, {"table", table, 1}}))
    return error;
  const int32_t n_blocks = inference->layers[layer].conv.n_output_blocks;
  if (const char* error = check_arrays("out", out, n_blocks, tile.last - tile.first)) return error;
  if (const char* error = check_density(*nodes, density, norm, norm)) return error;
  return run(*inference, [&](auto number) {
    using T = decltype(number);
    cpu::conv(*inference, layer, tile, *nodes, *edges, static_cast<const T*>(up),
              radial_of<T>(table, density, norm, nullptr), reinterpret_cast<T* const*>(out));
  });
}

const char* ms_inference_conv_backward(ms_inference* inference, int32_t layer, ms_tile tile,
                                       const ms_nodes* nodes, const ms_edges* edges, const void* up,
                                       const void* table, const void* density,
                                       const void* const* out_bar, const void* norm,
                                       const void* dot, void* up_bar) {
  if (const char* error = check_graph(inference, nodes, edges)) return error;
  if (const char* error = check_layer(inference, layer, tile, true)) return error;
  if (tile.last > nodes->n_nodes) return "tile: expected receivers that exist";
  if (const char* error = check_arguments({{"up", up, nodes->n_senders}, {"table", table, 1}}))
    return error;
  const int32_t n_blocks = inference->layers[layer].conv.n_output_blocks;
  if (const char* error = check_arrays("out_bar", out_bar, n_blocks, tile.last - tile.first))
    return error;
  if (const char* error = check_density(*nodes, density, norm, dot)) return error;
  return run(*inference, [&](auto number) {
    using T = decltype(number);
    cpu::conv_backward(*inference, layer, tile, *nodes, *edges, static_cast<const T*>(up),
                       radial_of<T>(table, density, norm, dot),
                       reinterpret_cast<const T* const*>(out_bar), static_cast<T*>(up_bar));
  });
}

const char* ms_inference_contract(ms_inference* inference, int32_t layer, ms_tile tile,
                                  const int32_t* species, const void* coefs, const void* const* msg,
                                  void* out) {
  if (const char* error = check_layer(inference, layer, tile, false)) return error;
  const int64_t n = tile.last - tile.first;
  if (const char* error =
          check_arguments({{"species", species, n}, {"coefs", coefs, n}, {"out", out, n}}))
    return error;
  const int32_t dim = inference->layers[layer].contract.dim;
  if (const char* error = check_arrays("msg", msg, dim, n)) return error;
  return run(*inference, [&](auto number) {
    using T = decltype(number);
    cpu::contract(*inference, layer, tile, species, static_cast<const T*>(coefs),
                  reinterpret_cast<const T* const*>(msg), static_cast<T*>(out));
  });
}

const char* ms_inference_contract_backward(ms_inference* inference, int32_t layer, ms_tile tile,
                                           const int32_t* species, const void* coefs,
                                           void* const* msg, const void* out_bar, void* dot) {
  if (const char* error = check_layer(inference, layer, tile, false)) return error;
  const int64_t n = tile.last - tile.first;
  if (const char* error =
          check_arguments({{"species", species, n}, {"coefs", coefs, n}, {"out_bar", out_bar, n}}))
    return error;
  const int32_t dim = inference->layers[layer].contract.dim;
  if (const char* error = check_arrays("msg", msg, dim, n)) return error;
  return run(*inference, [&](auto number) {
    using T = decltype(number);
    cpu::contract_backward(*inference, layer, tile, species, static_cast<const T*>(coefs),
                           reinterpret_cast<T* const*>(msg), static_cast<const T*>(out_bar),
                           static_cast<T*>(dot));
  });
}

const char* ms_inference_forces(ms_inference* inference, const ms_nodes* nodes,
                                const ms_edges* edges, double* forces, double* virial,
                                double* receiver_virial, double* sender_virial) {
  if (const char* error = check_graph(inference, nodes, edges)) return error;
  if (const char* error =
          check_arguments({{"forces", forces, nodes->n_senders}, {"virial", virial, 9}}))
    return error;
  return run(*inference, [&](auto number) {
    cpu::sum_forces<decltype(number)>(*nodes, *edges, forces,
                                      {virial, receiver_virial, sender_virial});
  });
}
