// The CUDA driver, opened at run time: the library is built without a CUDA toolkit and runs without
// a GPU.

#ifndef MACE_STREAM_CUDA_DRIVER_H
#define MACE_STREAM_CUDA_DRIVER_H

#include <cstddef>
#include <string>

namespace mace_stream {

// Opaque handles and result codes of the driver's stable C interface (CUDA Driver API reference).
using CUresult = int;
using CUdevice = int;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUdeviceptr = unsigned long long;

/// The driver's functions that are used here.
struct CudaDriver {
  CUresult (*init)(unsigned flags);
  CUresult (*get_error_string)(CUresult result, const char** text);
  CUresult (*retain_primary_context)(CUcontext* context, CUdevice device);
  CUresult (*push_context)(CUcontext context);
  CUresult (*pop_context)(CUcontext* context);
  CUresult (*load_module)(CUmodule* module, const void* image);
  CUresult (*get_function)(CUfunction* function, CUmodule module, const char* name);
  CUresult (*set_attribute)(CUfunction function, int attribute, int value);
  CUresult (*memset)(CUdeviceptr target, unsigned char value, std::size_t bytes, CUstream stream);
  CUresult (*copy)(CUdeviceptr target, CUdeviceptr source, std::size_t bytes, CUstream stream);
  CUresult (*launch)(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                     CUstream stream, void** arguments, void** extra);

  /// The driver, opened once per process. Throws std::runtime_error where there is none.
  static const CudaDriver& get();

  /// Throws std::runtime_error that names `what` and the driver's reason.
  void check(CUresult result, const std::string& what) const;
};

/// Makes a device's primary context current, the one that torch and XLA use, and restores the old
/// one.
class ContextScope {
 public:
  ContextScope(const CudaDriver& driver, CUdevice device);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const CudaDriver& driver_;
};

}  // namespace mace_stream

#endif
