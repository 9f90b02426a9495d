// XLA FFI handlers of the convolution, for CPU and CUDA: the only file that knows XLA.
//
// Sizes are read off the buffers; an array that is absent comes as an empty one. Row pointers may
// come as int64, or as pairs of int32 (low word, high word): JAX has 64-bit integers only where
// jax_enable_x64 is set, and on a little-endian machine the bytes are the same. Handlers enqueue on
// XLA's stream, never synchronize and never allocate, so they may be captured in a CUDA graph.

#include <mace_stream/conv.h>
#include <xla/ffi/api/ffi.h>

#include <string>
#include <utility>

namespace {

namespace ffi = xla::ffi;

using Array = ffi::AnyBuffer;
using Result = ffi::Result<ffi::AnyBuffer>;

void* address(const Array& array) {
  return array.element_count() == 0 ? nullptr : array.untyped_data();
}

void* address(Result& result) { return address(*result); }

ms_conv_plan* plan_at(int64_t number) { return reinterpret_cast<ms_conv_plan*>(number); }

ms_graph graph_of(const Array& node_feats, const Array& message, const Array& indptr,
                  const Array& sender, const Array& receiver, const Array& sender_indptr,
                  const Array& edge_of) {
  return {node_feats.dimensions()[0],
          message.dimensions()[0],
          sender.dimensions()[0],
          node_feats.dimensions()[2],
          static_cast<const int64_t*>(address(indptr)),
          static_cast<const int32_t*>(address(sender)),
          static_cast<const int32_t*>(address(receiver)),
          static_cast<const int64_t*>(address(sender_indptr)),
          static_cast<const int64_t*>(address(edge_of))};
}

ffi::Error status(const char* message) {
  if (!message) return ffi::Error::Success();
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, std::string("mace_stream: ") + message);
}

ffi::Error forward(ms_place place, int64_t plan, Array node_feats, Array edge_attrs,
                   Array path_weights, Array indptr, Array sender, Array receiver,
                   Array sender_indptr, Array edge_of, Result message) {
  const ms_graph graph =
      graph_of(node_feats, *message, indptr, sender, receiver, sender_indptr, edge_of);
  return status(ms_conv_forward(plan_at(plan), place, &graph, address(node_feats),
                                address(edge_attrs), address(path_weights), address(message)));
}

ffi::Error backward(ms_place place, int64_t plan, Array node_feats, Array edge_attrs,
                    Array path_weights, Array message_bar, Array indptr, Array sender,
                    Array receiver, Array sender_indptr, Array edge_of, Result node_feats_bar,
                    Result edge_attrs_bar, Result path_weights_bar, Result attrs_scratch) {
  const ms_graph graph =
      graph_of(node_feats, message_bar, indptr, sender, receiver, sender_indptr, edge_of);
  return status(ms_conv_backward(plan_at(plan), place, &graph, address(node_feats),
                                 address(edge_attrs), address(path_weights), address(message_bar),
                                 address(node_feats_bar), address(edge_attrs_bar),
                                 address(path_weights_bar), address(attrs_scratch)));
}

ffi::Error double_backward(ms_place place, int64_t plan, Array node_feats, Array edge_attrs,
                           Array path_weights, Array message_bar, Array node_bar_ct,
                           Array attrs_bar_ct, Array weights_bar_ct, Array indptr, Array sender,
                           Array receiver, Array sender_indptr, Array edge_of,
                           Result node_feats_grad, Result edge_attrs_grad, Result path_weights_grad,
                           Result message_bar_grad, Result attrs_scratch) {
  const ms_graph graph =
      graph_of(node_feats, message_bar, indptr, sender, receiver, sender_indptr, edge_of);
  return status(ms_conv_double_backward(
      plan_at(plan), place, &graph, address(node_feats), address(edge_attrs), address(path_weights),
      address(message_bar), address(node_bar_ct), address(attrs_bar_ct), address(weights_bar_ct),
      address(node_feats_grad), address(edge_attrs_grad), address(path_weights_grad),
      address(message_bar_grad), address(attrs_scratch)));
}

// ---- what XLA has to know: attributes, numbers of arrays, platforms ----

// Bindings can neither be copied nor moved, only built on, so they travel as references.

template <int count, typename Binding>
auto with_arrays(Binding&& binding) {
  if constexpr (count == 1)
    return std::move(binding).template Arg<Array>();
  else
    return with_arrays<count - 1>(std::move(binding).template Arg<Array>());
}

template <int count, typename Binding>
auto with_results(Binding&& binding) {
  if constexpr (count == 1)
    return std::move(binding).template Ret<Array>();
  else
    return with_results<count - 1>(std::move(binding).template Ret<Array>());
}

template <int n_arrays, int n_results, typename Binding>
auto with_signature(Binding&& binding) {
  return with_results<n_results>(
      with_arrays<n_arrays>(std::move(binding).template Attr<int64_t>("plan")));
}

template <int n_arrays, int n_results>
auto on_cpu() {
  return with_signature<n_arrays, n_results>(ffi::Ffi::Bind());
}

template <int n_arrays, int n_results>
auto on_cuda() {
  return with_signature<n_arrays, n_results>(
      ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>().Ctx<ffi::DeviceOrdinal>());
}

}  // namespace

#define MS_JAX_HANDLERS(pass, n_arrays, n_results)                                     \
  extern "C" MACE_STREAM_API XLA_FFI_Error* ms_jax_##pass##_cpu(XLA_FFI_CallFrame*);   \
  extern "C" MACE_STREAM_API XLA_FFI_Error* ms_jax_##pass##_cuda(XLA_FFI_CallFrame*);  \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                       \
      ms_jax_##pass##_cpu,                                                             \
      [](auto... arguments) { return pass(ms_place{-1, nullptr}, arguments...); },     \
      (on_cpu<n_arrays, n_results>()));                                                \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(ms_jax_##pass##_cuda,                                  \
                                [](void* stream, int32_t device, auto... arguments) {  \
                                  return pass(ms_place{device, stream}, arguments...); \
                                },                                                     \
                                (on_cuda<n_arrays, n_results>()),                      \
                                {ffi::Traits::kCmdBufferCompatible})

MS_JAX_HANDLERS(forward, 8, 1);
MS_JAX_HANDLERS(backward, 9, 4);
MS_JAX_HANDLERS(double_backward, 12, 5);
