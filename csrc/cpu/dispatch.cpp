// Which kernels this processor runs.

#include "kernels.h"

/// 0 builds for the plainest processor of the architecture, 1 up to AVX2, 2 up to AVX-512. Tests
/// lower it to reach every set of kernels on one machine.
#ifndef MACE_STREAM_MAX_INSTRUCTION_SET
#define MACE_STREAM_MAX_INSTRUCTION_SET 2
#endif

namespace mace_stream {

namespace baseline {
template <typename T>
const Kernels<T>& kernels();
}
namespace avx2 {
template <typename T>
const Kernels<T>& kernels();
}
namespace avx512 {
template <typename T>
const Kernels<T>& kernels();
}

template <typename T>
const Kernels<T>& best_kernels() {
#if defined(__x86_64__)
  if (MACE_STREAM_MAX_INSTRUCTION_SET >= 2 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw"))
    return avx512::kernels<T>();
  if (MACE_STREAM_MAX_INSTRUCTION_SET >= 1 && __builtin_cpu_supports("avx2") &&
      __builtin_cpu_supports("fma"))
    return avx2::kernels<T>();
#endif
  return baseline::kernels<T>();
}

template const Kernels<float>& best_kernels<float>();
template const Kernels<double>& best_kernels<double>();

}  // namespace mace_stream
