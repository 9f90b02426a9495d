// Which kernels this processor runs.

#include "inference_kernels.h"
#include "kernels.h"

/// 0 builds for the plainest processor of the architecture, 1 up to AVX2, 2 up to AVX-512. Tests
/// lower it to reach every set of kernels on one machine.
#ifndef MACE_STREAM_MAX_INSTRUCTION_SET
#define MACE_STREAM_MAX_INSTRUCTION_SET 2
#endif

namespace mace_stream {

#define DECLARE(isa)                              \
  namespace isa {                                 \
  template <typename T>                           \
  const Kernels<T>& kernels();                    \
  template <typename T>                           \
  const InferenceKernels<T>& inference_kernels(); \
  }
DECLARE(baseline)
DECLARE(avx2)
DECLARE(avx512)

namespace {

bool has_avx512() {
#if defined(__x86_64__)
  return MACE_STREAM_MAX_INSTRUCTION_SET >= 2 && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw");
#else
  return false;
#endif
}

bool has_avx2() {
#if defined(__x86_64__)
  return MACE_STREAM_MAX_INSTRUCTION_SET >= 1 && __builtin_cpu_supports("avx2") &&
         __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

}  // namespace

template <typename T>
const Kernels<T>& best_kernels() {
#if defined(__x86_64__)
  if (has_avx512()) return avx512::kernels<T>();
  if (has_avx2()) return avx2::kernels<T>();
#endif
  return baseline::kernels<T>();
}

template <typename T>
const InferenceKernels<T>& best_inference_kernels() {
#if defined(__x86_64__)
  if (has_avx512()) return avx512::inference_kernels<T>();
  if (has_avx2()) return avx2::inference_kernels<T>();
#endif
  return baseline::inference_kernels<T>();
}

template const Kernels<float>& best_kernels<float>();
template const Kernels<double>& best_kernels<double>();
template const InferenceKernels<float>& best_inference_kernels<float>();
template const InferenceKernels<double>& best_inference_kernels<double>();

}  // namespace mace_stream
