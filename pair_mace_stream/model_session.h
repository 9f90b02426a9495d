// The wall between LAMMPS and the model.

#ifndef MACE_STREAM_MODEL_SESSION_H
#define MACE_STREAM_MODEL_SESSION_H

#include "edge_graph.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace mace_stream {

/// Result of one evaluation, in eV and Å. The per-node vectors are filled only where asked for.
struct Evaluation {
  double energy = 0.0;
  double virial[9] = {};                  // W_ab = -sum edge_vec_a dE/d(edge_vec_b), row-major
  std::vector<double> forces;             // [n_nodes, 3]
  std::vector<double> node_energy;        // [n_nodes]
  std::vector<double> receiver_virial;    // [n_nodes, 9]  edges of which the node is receiver
  std::vector<double> sender_virial;      // [n_nodes, 9]  edges of which the node is sender
};

/// What to compute beyond energy, forces and virial.
struct Wanted {
  bool node_energy = false;
  bool node_virial = false;
};

using Facts = std::map<std::string, std::string>;
using Timings = std::map<std::string, double>;

/// A loaded model. Knows neither LAMMPS nor Python, so tests can fake it.
/// Every call throws std::runtime_error carrying the model's own message.
class ModelSession {
 public:
  virtual ~ModelSession() = default;

  /// Cutoff in Å.
  virtual double r_max() const = 0;
  /// Species of each atom type, -1 for NULL: [n_types + 1], entry 0 unused.
  virtual const std::vector<int> &type_species() const = 0;
  /// Standard masses in g/mol, 0 for NULL: [n_types + 1], entry 0 unused.
  virtual const std::vector<double> &type_masses() const = 0;

  /// Hands over a new list. The graph need not outlive the call.
  virtual void set_topology(const EdgeGraph &graph) = 0;

  /// Whether the model can find its pairs by itself, see `set_atoms`.
  virtual bool finds_pairs() const = 0;
  /// Instead of a list: node of every atom, images included, [n_all]; -1 for other styles' atoms.
  /// The model takes all pairs up to `cutoff` in Å at the positions of the next evaluation.
  virtual void set_atoms(const EdgeGraph &nodes, const std::vector<std::int64_t> &node, int n_local,
                         double cutoff) = 0;

  /// Evaluates at `positions` [n_atoms, 3] in Å, ghosts included; the result lives until the next.
  virtual const Evaluation &evaluate(const double *positions, int n_atoms, Wanted wanted) = 0;

  /// Text of the block printed at the start, and of the table at the end of a run.
  virtual std::string start_report(const Facts &facts) = 0;
  virtual std::string end_report(const Timings &timings) = 0;
};

}    // namespace mace_stream

#endif
