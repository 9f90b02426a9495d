// Kernels for x86-64 processors with AVX2 and FMA.

#include "inference_kernels.h"

#if defined(__x86_64__)

// Not popped: templates are instantiated at the end of the file.

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

#define ISA avx2
#define VECTOR_BYTES 32
#define REGISTERS 16

#include "block_kernels.h"
#include "inference_isa.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
