// Kernels that every processor of the architecture runs: SSE2 on x86-64, NEON on aarch64.

#include "inference_kernels.h"

#define ISA baseline
#define VECTOR_BYTES 16
#if defined(__aarch64__)
#define REGISTERS 32
#else
#define REGISTERS 16
#endif

#include "block_kernels.h"
#include "inference_isa.h"
