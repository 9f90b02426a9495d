// The inference path's kernels of one instruction set. Included by the isa_*.cpp files after
// block_kernels.h, whose rules hold here as well: nothing of the standard library, nothing inline
// that is shared.

// clang-format off: in the order of their dependence
#include "inference_lanes.h"
#include "inference_radial.h"
#include "inference_harmonics.h"
#include "inference_scatter.h"
#include "inference_conv.h"
#include "inference_conv_backward.h"
#include "inference_contract.h"
// clang-format on

namespace mace_stream {
namespace ISA {

template <typename T>
const InferenceKernels<T>& inference_kernels() {
  static constexpr InferenceKernels<T> table{scatter<T>,  scatter_backward<T>,
                                             conv<T>,     conv_backward<T>,
                                             contract<T>, contract_backward<T>};
  return table;
}

template const InferenceKernels<float>& inference_kernels<float>();
template const InferenceKernels<double>& inference_kernels<double>();

}  // namespace ISA
}  // namespace mace_stream
