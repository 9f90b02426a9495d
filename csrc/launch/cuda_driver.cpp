#include "cuda_driver.h"

#include <dlfcn.h>

#include <mutex>
#include <stdexcept>
#include <vector>

namespace mace_stream {
namespace {

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function) throw std::runtime_error(std::string("the CUDA driver has no ") + name);
}

CudaDriver open_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(std::string("no CUDA driver: ") + dlerror());
  CudaDriver driver;
  find(library, "cuInit", driver.init);
  find(library, "cuGetErrorString", driver.get_error_string);
  find(library, "cuDevicePrimaryCtxRetain", driver.retain_primary_context);
  find(library, "cuCtxPushCurrent_v2", driver.push_context);
  find(library, "cuCtxPopCurrent_v2", driver.pop_context);
  find(library, "cuModuleLoadData", driver.load_module);
  find(library, "cuModuleGetFunction", driver.get_function);
  find(library, "cuFuncSetAttribute", driver.set_attribute);
  find(library, "cuMemsetD8Async", driver.memset);
  find(library, "cuMemcpyAsync", driver.copy);
  find(library, "cuLaunchKernel", driver.launch);
  driver.check(driver.init(0), "cuInit");
  return driver;
}

/// The primary context of a device, retained once and for good.
CUcontext primary_context(const CudaDriver& driver, CUdevice device) {
  static std::mutex mutex;
  static std::vector<CUcontext> contexts;
  const std::lock_guard<std::mutex> lock(mutex);
  if (static_cast<std::size_t>(device) >= contexts.size()) contexts.resize(device + 1, nullptr);
  if (!contexts[device])
    driver.check(driver.retain_primary_context(&contexts[device], device),
                 "opening CUDA device " + std::to_string(device));
  return contexts[device];
}

}  // namespace

const CudaDriver& CudaDriver::get() {
  static const CudaDriver driver = open_driver();
  return driver;
}

void CudaDriver::check(CUresult result, const std::string& what) const {
  if (result == 0) return;
  const char* text = nullptr;
  get_error_string(result, &text);
  throw std::runtime_error(what + ": " + (text ? text : "CUDA error") + " (" +
                           std::to_string(result) + ")");
}

ContextScope::ContextScope(const CudaDriver& driver, CUdevice device) : driver_(driver) {
  driver.check(driver.push_context(primary_context(driver, device)), "cuCtxPushCurrent");
}

ContextScope::~ContextScope() {
  CUcontext old;
  driver_.pop_context(&old);
}

}  // namespace mace_stream
