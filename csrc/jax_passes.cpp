// XLA FFI handlers of the inference path's passes, for CPU and CUDA. Like jax_ffi.cpp it knows XLA.
//
// A call comes as numbers that were recorded when the program was traced: what the launcher of
// mace_stream/kernels would have passed, with a mark in place of the address of every buffer. The
// handlers put the addresses in, so that torch and XLA pass the same arguments. They enqueue on
// XLA's stream, never synchronize and never allocate, and may be captured in a CUDA graph.

#include <mace_stream/inference.h>
#include <xla/ffi/api/ffi.h>

#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "launch/cuda_driver.h"

namespace {

namespace ffi = xla::ffi;

// A mark is MARK | buffer << OFFSET_BITS | offset in bytes. Results are counted from FIRST_RESULT.

constexpr uint64_t MARK = uint64_t(1) << 62;
constexpr int OFFSET_BITS = 40;
constexpr uint64_t OFFSET_MASK = (uint64_t(1) << OFFSET_BITS) - 1;
constexpr uint64_t FIRST_RESULT = 1024;

/// Reads the numbers of a call one after the other.
class Numbers {
 public:
  Numbers(ffi::Span<const int64_t> numbers, ffi::RemainingArgs arrays, ffi::RemainingRets results)
      : next_(numbers.begin()), end_(numbers.end()), arrays_(arrays), results_(results) {}

  bool at_end() const { return next_ == end_; }

  int64_t number() {
    if (at_end()) throw std::runtime_error("a call of a pass ends too early");
    const uint64_t value = uint64_t(*next_++);
    return value & MARK ? int64_t(address(value)) : int64_t(value);
  }

  template <typename T = void>
  T* pointer() {
    return reinterpret_cast<T*>(number());
  }

 private:
  uintptr_t address(uint64_t mark) {
    const uint64_t buffer = (mark & ~MARK) >> OFFSET_BITS;
    auto* start = buffer < FIRST_RESULT ? array(buffer) : result(buffer - FIRST_RESULT);
    return start ? reinterpret_cast<uintptr_t>(start) + (mark & OFFSET_MASK) : 0;
  }

  void* array(size_t number) {
    auto found = arrays_.get<ffi::AnyBuffer>(number);
    if (!found.has_value())
      throw std::runtime_error("a pass has no array " + std::to_string(number));
    return found->element_count() ? found->untyped_data() : nullptr;
  }

  void* result(size_t number) {
    auto found = results_.get<ffi::AnyBuffer>(number);
    if (!found.has_value())
      throw std::runtime_error("a pass has no result " + std::to_string(number));
    return (*found)->element_count() ? (*found)->untyped_data() : nullptr;
  }

  const int64_t *next_, *end_;
  ffi::RemainingArgs arrays_;
  ffi::RemainingRets results_;
};

template <typename Body>
ffi::Error status_of(const Body& body) {
  try {
    body();
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kInternal, std::string("mace_stream: ") + error.what());
  }
}

// ---- CPU: the C face ----

ms_nodes nodes_of(Numbers& numbers) {
  ms_nodes nodes;
  nodes.n_nodes = numbers.number();
  nodes.n_senders = numbers.number();
  nodes.n_slots = numbers.number();
  nodes.first = numbers.pointer<int64_t>();
  nodes.node_atom = numbers.pointer<int32_t>();
  nodes.slot_atom = numbers.pointer<int32_t>();
  nodes.slot_node = numbers.pointer<int32_t>();
  nodes.species = numbers.pointer<int32_t>();
  return nodes;
}

ms_edges edges_of(Numbers& numbers) {
  ms_edges edges;
  edges.count = numbers.pointer<int32_t>();
  edges.sender = numbers.pointer<int32_t>();
  edges.row = numbers.pointer<int32_t>();
  edges.t = numbers.pointer();
  edges.dir = numbers.pointer();
  edges.grad = numbers.pointer();
  return edges;
}

/// What a pass is told beside its arrays, in the order in which it was recorded.
struct Given {
  int32_t layer = 0;
  ms_tile tile = {0, 0};
  ms_nodes nodes = {};
  ms_edges edges = {};

  void read_layer(Numbers& numbers) {
    layer = int32_t(numbers.number());
    tile.first = numbers.number();
    tile.last = numbers.number();
  }

  void read_graph(Numbers& numbers) {
    nodes = nodes_of(numbers);
    edges = edges_of(numbers);
  }
};

template <int count>
struct Pointers {
  void* at[count];
  explicit Pointers(Numbers& numbers) {
    for (void*& pointer : at) pointer = numbers.pointer();
  }
};

/// An array of addresses, whose number comes first.
std::vector<void*> several(Numbers& numbers) {
  std::vector<void*> pointers(size_t(numbers.number()));
  for (void*& pointer : pointers) pointer = numbers.pointer();
  return pointers;
}

/// Names as in mace_stream/kernels/inference_cpu.py.
const char* run_pass(const std::string& name, Numbers& numbers) {
  auto* inference = numbers.pointer<ms_inference>();
  Given given;
  if (name == "contract" || name == "contract_backward") {
    given.read_layer(numbers);
    const auto* species = numbers.pointer<int32_t>();
    const auto* coefs = numbers.pointer();
    const std::vector<void*> msg = several(numbers);
    if (name == "contract")
      return ms_inference_contract(inference, given.layer, given.tile, species, coefs, msg.data(),
                                   numbers.pointer());
    const Pointers<2> p(numbers);
    return ms_inference_contract_backward(inference, given.layer, given.tile, species, coefs,
                                          msg.data(), p.at[0], p.at[1]);
  }
  if (name == "conv" || name == "conv_backward") given.read_layer(numbers);
  given.read_graph(numbers);
  if (name == "conv") {
    const Pointers<3> p(numbers);
    const std::vector<void*> out = several(numbers);
    return ms_inference_conv(inference, given.layer, given.tile, &given.nodes, &given.edges,
                             p.at[0], p.at[1], p.at[2], out.data(), numbers.pointer());
  }
  if (name == "conv_backward") {
    const Pointers<3> p(numbers);
    const std::vector<void*> out_bar = several(numbers);
    const Pointers<3> rest(numbers);
    return ms_inference_conv_backward(inference, given.layer, given.tile, &given.nodes,
                                      &given.edges, p.at[0], p.at[1], p.at[2], out_bar.data(),
                                      rest.at[0], rest.at[1], rest.at[2]);
  }
  if (name == "scatter") {
    const Pointers<4> p(numbers);
    return ms_inference_scatter(inference, &given.nodes, &given.edges, p.at[0], p.at[1], p.at[2],
                                p.at[3]);
  }
  if (name == "scatter_backward") {
    const Pointers<5> p(numbers);
    return ms_inference_scatter_backward(inference, &given.nodes, &given.edges, p.at[0], p.at[1],
                                         p.at[2], p.at[3], p.at[4]);
  }
  if (name == "edges") {
    const Pointers<3> p(numbers);
    return ms_inference_edges(inference, &given.nodes, &given.edges, static_cast<double*>(p.at[0]),
                              static_cast<double*>(p.at[1]), static_cast<double*>(p.at[2]));
  }
  if (name == "forces") {
    const Pointers<4> p(numbers);
    return ms_inference_forces(inference, &given.nodes, &given.edges, static_cast<double*>(p.at[0]),
                               static_cast<double*>(p.at[1]), static_cast<double*>(p.at[2]),
                               static_cast<double*>(p.at[3]));
  }
  return "there is no pass of this name";
}

/// XLA runs calls that do not depend on each other at the same time, and an object of the passes
/// serves one call at a time.
ffi::Error pass_on_cpu(std::string_view name, ffi::Span<const int64_t> numbers,
                       ffi::RemainingArgs arrays, ffi::RemainingRets results) {
  static std::mutex mutex;
  return status_of([&] {
    const std::lock_guard<std::mutex> lock(mutex);
    Numbers reader(numbers, arrays, results);
    const std::string pass(name);
    if (const char* error = run_pass(pass, reader)) throw std::runtime_error(pass + ": " + error);
  });
}

// ---- CUDA: launches of kernels ----

using mace_stream::ContextScope;
using mace_stream::CudaDriver;
using mace_stream::CUfunction;
using mace_stream::CUstream;

void clear(const CudaDriver& driver, CUstream stream, Numbers& numbers) {
  const auto target = mace_stream::CUdeviceptr(numbers.number());
  const auto n_bytes = size_t(numbers.number());
  if (target && n_bytes) driver.check(driver.memset(target, 0, n_bytes, stream), "clearing");
}

/// Between the device and page-locked memory of the host.
void copy(const CudaDriver& driver, CUstream stream, Numbers& numbers) {
  const auto target = mace_stream::CUdeviceptr(numbers.number());
  const auto source = mace_stream::CUdeviceptr(numbers.number());
  const auto n_bytes = size_t(numbers.number());
  if (n_bytes) driver.check(driver.copy(target, source, n_bytes, stream), "copying");
}

/// A kernel's arguments are structs of numbers of 8 bytes, as recorded.
void launch(const CudaDriver& driver, CUstream stream, Numbers& numbers) {
  const auto function = reinterpret_cast<CUfunction>(numbers.number());
  const auto grid_x = unsigned(numbers.number()), grid_y = unsigned(numbers.number());
  const auto threads = unsigned(numbers.number());
  std::vector<std::vector<int64_t>> arguments(size_t(numbers.number()));
  std::vector<void*> addresses;
  for (auto& argument : arguments) {
    argument.resize(size_t(numbers.number()));
    for (int64_t& value : argument) value = numbers.number();
    addresses.push_back(argument.data());
  }
  driver.check(driver.launch(function, grid_x, grid_y, 1, threads, 1, 1, 0, stream,
                             addresses.data(), nullptr),
               "launching a kernel");
}

ffi::Error pass_on_cuda(void* stream, int32_t device, ffi::Span<const int64_t> numbers,
                        ffi::RemainingArgs arrays, ffi::RemainingRets results) {
  return status_of([&] {
    const CudaDriver& driver = CudaDriver::get();
    const ContextScope scope(driver, device);
    Numbers reader(numbers, arrays, results);
    while (!reader.at_end()) {
      constexpr decltype(&launch) kinds[] = {clear, launch, copy};
      const int64_t kind = reader.number();
      if (kind < 0 || kind > 2) throw std::runtime_error("a call of a pass is of no known kind");
      kinds[kind](driver, static_cast<CUstream>(stream), reader);
    }
  });
}

}  // namespace

#define MS_JAX_HANDLER(name) \
  extern "C" MACE_STREAM_API XLA_FFI_Error* ms_jax_##name(XLA_FFI_CallFrame*)

MS_JAX_HANDLER(pass_cpu);
XLA_FFI_DEFINE_HANDLER_SYMBOL(ms_jax_pass_cpu, pass_on_cpu,
                              ffi::Ffi::Bind()
                                  .Attr<std::string_view>("name")
                                  .Attr<ffi::Span<const int64_t>>("numbers")
                                  .RemainingArgs()
                                  .RemainingRets());

MS_JAX_HANDLER(pass_cuda);
XLA_FFI_DEFINE_HANDLER_SYMBOL(ms_jax_pass_cuda, pass_on_cuda,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<void*>>()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Attr<ffi::Span<const int64_t>>("numbers")
                                  .RemainingArgs()
                                  .RemainingRets(),
                              {ffi::Traits::kCmdBufferCompatible});
