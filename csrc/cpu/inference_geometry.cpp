// From positions to edges, and from the edges' gradient to forces; in double precision.

#include <algorithm>
#include <cmath>
#include <limits>

#include "inference_passes.h"

namespace mace_stream {
namespace cpu {
namespace {

/// Energy and its derivative.
struct Potential {
  double value = 0, slope = 0;
};

/// MACE's polynomial envelope (DOI 10.48550/arXiv.2003.03123, eq. 8) at 0 <= u < 1.
Potential envelope(double u, int p) {
  const double power = std::pow(u, p - 1);
  const double a = (p + 1) * (p + 2) / 2.0, b = p * (p + 2.0), c = p * (p + 1) / 2.0;
  return {1 - power * u * (a - u * (b - u * c)),
          -power * (a * p - u * (b * (p + 1) - u * c * (p + 2)))};
}

/// Repulsion of a pair at distance r; see ms_repulsion.
Potential repulsion_of(const RepulsionTables& tables, int64_t pair, double r) {
  const double bond = tables.bond[pair];
  if (r >= bond) return {};  // a NaN goes on
  Potential screening;
  for (int k = 0; k < 4; ++k) {
    const double decay = tables.formula.decays[k] * tables.inverse_length[pair];
    const double term = tables.formula.coefficients[k] * std::exp(-decay * r);
    screening.value += term;
    screening.slope -= decay * term;
  }
  const Potential cut = envelope(r / bond, tables.formula.p);
  const double charge = tables.charge[pair];
  const double bare = charge / r * screening.value;
  const double bare_slope = charge / r * screening.slope - bare / r;
  return {bare * cut.value, bare_slope * cut.value + bare * cut.slope / bond};
}

template <typename T>
struct EdgeFinder {
  const ms_inference& inference;
  const ms_nodes& nodes;
  const ms_edges& edges;
  const double* x;
  double inverse_step;
  T *t, *dir, *grad;

  EdgeFinder(const ms_inference& tables, const ms_nodes& list, const ms_edges& target,
             const double* positions)
      : inference(tables),
        nodes(list),
        edges(target),
        x(positions),
        inverse_step(tables.inverse_step()),
        t(static_cast<T*>(target.t)),
        dir(static_cast<T*>(target.dir)),
        grad(static_cast<T*>(target.grad)) {}

  /// Writes the edge of a slot to place `edge`; returns its energy.
  double write(int64_t edge, int64_t slot, int32_t receiver_species, const double (&vec)[3],
               double r) const {
    const ms_inference_sizes& sizes = inference.sizes;
    const int32_t sender = nodes.slot_node[slot];
    const int64_t pair = int64_t(receiver_species) * sizes.n_species + nodes.species[sender];
    const double u = std::max((r - sizes.r_0) * inverse_step, 0.0);
    const int64_t knot = u < double(sizes.n_knots) ? int64_t(u) : sizes.n_knots - 1;
    edges.sender[edge] = sender;
    edges.row[edge] = int32_t(pair * sizes.n_knots + knot);
    t[edge] = T(u - double(knot));
    Potential repulsion;
    if (inference.repulsion) repulsion = repulsion_of(*inference.repulsion, pair, r);
    for (int axis = 0; axis < 3; ++axis) {
      dir[4 * edge + axis] = T(vec[axis] / r);
      grad[3 * edge + axis] = T(repulsion.slope * (vec[axis] / r));
    }
    dir[4 * edge + 3] = T(1 / r);
    return repulsion.value;
  }

  /// All of one row. Returns the smallest distance.
  double find(int64_t node, double& node_energy) const {
    const double* receiver = x + 3 * int64_t(nodes.node_atom[node]);
    int64_t edge = nodes.first[node];
    double energy = 0, smallest = std::numeric_limits<double>::infinity();
    for (int64_t slot = nodes.first[node]; slot < nodes.first[node + 1]; ++slot) {
      const double* sender = x + 3 * int64_t(nodes.slot_atom[slot]);
      const double vec[3] = {receiver[0] - sender[0], receiver[1] - sender[1],
                             receiver[2] - sender[2]};
      const double r = std::sqrt(vec[0] * vec[0] + vec[1] * vec[1] + vec[2] * vec[2]);
      if (r >= inference.sizes.r_max) continue;
      smallest = std::min(smallest, r);
      energy += write(edge++, slot, nodes.species[node], vec, r);
    }
    edges.count[node] = int32_t(edge - nodes.first[node]);
    node_energy = energy;
    return smallest;
  }
};

}  // namespace

template <typename T>
void find_edges(const ms_inference& inference, const ms_nodes& nodes, const ms_edges& edges,
                const double* x, double* node_energy, double* closest) {
  const EdgeFinder<T> finder(inference, nodes, edges, x);
  double smallest = inference.sizes.r_0;
#pragma omp parallel for schedule(static) reduction(min : smallest)
  for (int64_t node = 0; node < nodes.n_nodes; ++node)
    smallest = std::min(smallest, finder.find(node, node_energy[node]));
  if (smallest < inference.sizes.r_0) *closest = smallest;
}

namespace {

/// Receiver's and sender's forces, and the virial's part, of one edge.
template <typename T>
struct ForceSum {
  const T *dir, *grad;
  double* forces;
  const Virials& virials;

  void add(int64_t edge, int64_t receiver, int64_t sender) const {
    const T* unit = dir + 4 * edge;
    for (int a = 0; a < 3; ++a) {
      const double along = grad[3 * edge + a];
      forces[3 * receiver + a] -= along;
      forces[3 * sender + a] += along;
    }
    for (int a = 0; a < 3; ++a)
      for (int b = 0; b < 3; ++b) {
        const double part = -double(unit[a]) / double(unit[3]) * double(grad[3 * edge + b]);
        virials.total[3 * a + b] += part;
        if (virials.receiver) virials.receiver[9 * receiver + 3 * a + b] += part;
        if (virials.sender) virials.sender[9 * sender + 3 * a + b] += part;
      }
  }
};

}  // namespace

template <typename T>
void sum_forces(const ms_nodes& nodes, const ms_edges& edges, double* forces,
                const Virials& virials) {
  std::fill(forces, forces + 3 * nodes.n_senders, 0.0);
  std::fill(virials.total, virials.total + 9, 0.0);
  if (virials.receiver) std::fill(virials.receiver, virials.receiver + 9 * nodes.n_nodes, 0.0);
  if (virials.sender) std::fill(virials.sender, virials.sender + 9 * nodes.n_senders, 0.0);
  const ForceSum<T> sum{static_cast<const T*>(edges.dir), static_cast<const T*>(edges.grad), forces,
                        virials};
  for (int64_t node = 0; node < nodes.n_nodes; ++node)
    for (int64_t k = 0; k < edges.count[node]; ++k)
      sum.add(nodes.first[node] + k, node, edges.sender[nodes.first[node] + k]);
}

#define INSTANTIATE(T)                                                               \
  template void find_edges<T>(const ms_inference&, const ms_nodes&, const ms_edges&, \
                              const double*, double*, double*);                      \
  template void sum_forces<T>(const ms_nodes&, const ms_edges&, double*, const Virials&);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace cpu
}  // namespace mace_stream
