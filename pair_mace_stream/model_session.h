// The wall between LAMMPS and the model.

#ifndef MACE_STREAM_MODEL_SESSION_H
#define MACE_STREAM_MODEL_SESSION_H

#include "edge_graph.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace mace_stream {

/// Result of one evaluation, in eV and Å. The per-node vectors are filled only where asked for.
struct Evaluation {
  double energy = 0.0;
  double virial[9] = {};                  // W_ab = -sum edge_vec_a dE/d(edge_vec_b), row-major
  std::vector<double> forces;             // [n_senders, 3]
  std::vector<double> node_energy;        // [n_nodes]
  std::vector<double> receiver_virial;    // [n_nodes, 9]  edges of which the node is receiver
  std::vector<double> sender_virial;      // [n_senders, 9]  edges of which the node is sender
};

/// What to compute beyond energy, forces and virial.
struct Wanted {
  bool node_energy = false;
  bool node_virial = false;
};

/// Exchange of rows of node arrays between ranks, on memory that MPI can reach. On the way out,
/// rows of own nodes go to the ranks whose edges start from them; on the way home, rows of other
/// ranks' nodes go back to their owners. Every rank makes the same calls in the same order.
class FeatureExchange {
 public:
  virtual ~FeatureExchange() = default;

  std::vector<std::int32_t> sent;           // [n_sent]   own nodes, peer after peer
  std::vector<std::int64_t> peer_counts;    // [n_peers]  how many of them go to each peer
  int n_received = 0;                       // nodes of other ranks

  /// Begins an exchange of rows of `row_bytes`: `out` [n_sent] to `in` [n_received]; on the way
  /// home `out` [n_received] to `in` [n_sent]. Both belong to the exchange until `finish`.
  virtual void start(const void *out, void *in, std::int64_t row_bytes, bool home) = 0;
  /// Waits for what was started. Throws std::runtime_error where another rank has failed.
  virtual void finish() = 0;
  /// Whether each exchange of this evaluation is to be made twice, in the two ways that rows can
  /// go, so that the model compares them. The same on all ranks.
  virtual bool compares() const = 0;
};

using Facts = std::map<std::string, std::string>;
using Timings = std::map<std::string, double>;

/// A loaded model. Knows neither LAMMPS nor Python, so tests can fake it.
/// Every call throws std::runtime_error carrying the model's own message.
class ModelSession {
 public:
  virtual ~ModelSession() = default;

  /// More than one is a committee.
  virtual int n_models() const = 0;
  /// Cutoff in Å.
  virtual double r_max() const = 0;
  /// Species of each atom type, -1 for NULL: [n_types + 1], entry 0 unused.
  virtual const std::vector<int> &type_species() const = 0;
  /// Standard masses in g/mol, 0 for NULL: [n_types + 1], entry 0 unused.
  virtual const std::vector<double> &type_masses() const = 0;

  /// On several ranks, before each new list: the exchange, which outlives the session.
  virtual void set_exchange(FeatureExchange &exchange) = 0;
  /// Which way each exchange of an evaluation goes, true for home.
  virtual std::vector<bool> exchanges() = 0;
  /// The same for `all_forces`.
  virtual std::vector<bool> other_exchanges() = 0;

  /// What decides the numbers: model, SHA-256, head, precision, elements, for restart files.
  virtual Facts record() = 0;

  /// Hands over a new list. The graph need not outlive the call.
  virtual void set_topology(const EdgeGraph &graph) = 0;

  /// Whether the model can find its pairs by itself, see `set_atoms`.
  virtual bool finds_pairs() const = 0;
  /// Instead of a list: node of every atom, images included, [n_all]; -1 for other styles' atoms.
  /// The model takes all pairs up to `cutoff` in Å at the positions of the next evaluation.
  virtual void set_atoms(const EdgeGraph &nodes, const std::vector<std::int64_t> &node, int n_local,
                         double cutoff) = 0;

  /// Ids of the nodes' atoms after a new list, and their rows of positions, for messages that name
  /// atoms: [n_senders].
  virtual void set_ids(const std::vector<std::int64_t> &ids,
                       const std::vector<std::int64_t> &rows) = 0;

  /// Evaluates at `positions` [n_atoms, 3] in Å, ghosts included; the result lives until the next.
  virtual Evaluation &evaluate(const double *positions, int n_atoms, Wanted wanted) = 0;

  /// Forces of every model of a committee where the last evaluation was, [n_models][n_senders, 3];
  /// models that were not evaluated there are now. The result lives until the next.
  virtual std::vector<std::vector<double>> &all_forces() = 0;

  /// Takes over a new list, if there is one, before its first evaluation at these positions.
  /// Returns the number of its pairs, each counted from both sides.
  virtual std::int64_t take_list(const double *positions, int n_atoms) = 0;
  /// Compares with the exact path at these positions, where the options ask for it. Returns a line
  /// for the log, or nothing.
  virtual std::string verify(const double *positions, int n_atoms) = 0;
  /// Device and host, in words.
  virtual std::string placement() = 0;
  /// Seconds of the parts of evaluations since the last call, and whatever else is measured.
  virtual Timings take_statistics() = 0;

  /// Text of the block printed at the start, and of the table at the end of a run from sums and
  /// maxima over ranks.
  virtual std::string start_report(const Facts &facts) = 0;
  virtual std::string end_report(const Timings &sum, const Timings &most, int n_ranks) = 0;
};

}    // namespace mace_stream

#endif
