// Kernels for x86-64 processors with AVX-512.

#include "inference_kernels.h"

#if defined(__x86_64__)

// Not popped: templates are instantiated at the end of the file.

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,fma"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512vl,avx512dq,avx512bw,fma")
#endif

#define ISA avx512
#define VECTOR_BYTES 64
#define REGISTERS 32

#include "block_kernels.h"
#include "inference_isa.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
