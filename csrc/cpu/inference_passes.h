// The passes of the inference path on the CPU. Arguments are checked before, see
// inference_face.cpp; shapes are those of mace_stream/inference.h.

#pragma once

#include "inference_setup.h"

namespace mace_stream {
namespace cpu {

/// Radial tables of a pass, and what belongs to its density; null where there is none.
template <typename T>
struct Radial {
  const T *table, *density;
  T* norm;
  const T* dot;
};

template <typename T>
void find_edges(const ms_inference& inference, const ms_nodes& nodes, const ms_edges& edges,
                const double* x, double* node_energy, double* closest);

template <typename T>
void scatter(ms_inference& inference, const ms_nodes& nodes, const ms_edges& edges,
             const Radial<T>& radial, T* out);

template <typename T>
void scatter_backward(ms_inference& inference, const ms_nodes& nodes, const ms_edges& edges,
                      const Radial<T>& radial, const T* out_bar);

template <typename T>
void conv(ms_inference& inference, int32_t layer, ms_tile tile, const ms_nodes& nodes,
          const ms_edges& edges, const T* up, const Radial<T>& radial, T* const* out);

template <typename T>
void conv_backward(ms_inference& inference, int32_t layer, ms_tile tile, const ms_nodes& nodes,
                   const ms_edges& edges, const T* up, const Radial<T>& radial,
                   const T* const* out_bar, T* up_bar);

template <typename T>
void contract(ms_inference& inference, int32_t layer, ms_tile tile, const int32_t* species,
              const T* coefs, const T* const* msg, T* out);

template <typename T>
void contract_backward(ms_inference& inference, int32_t layer, ms_tile tile, const int32_t* species,
                       const T* coefs, T* const* msg, const T* out_bar, T* dot);

struct Virials {
  double *total, *receiver, *sender; /* the last two may be null */
};

template <typename T>
void sum_forces(const ms_nodes& nodes, const ms_edges& edges, double* forces,
                const Virials& virials);

}  // namespace cpu
}  // namespace mace_stream
