// Neighbor list -> receiver-major edges (CSR). Knows neither LAMMPS nor Python.

#ifndef MACE_STREAM_EDGE_GRAPH_H
#define MACE_STREAM_EDGE_GRAPH_H

#include <cstdint>
#include <vector>

namespace mace_stream {

/// What the neighbor list holds. In a half list with newton on every pair stands once; with newton
/// off a pair of a local atom and a ghost stands once for each of the two atoms that own it.
enum class ListKind { FULL, HALF_NEWTON_ON, HALF_NEWTON_OFF };

/// LAMMPS' neighbor list as it is: rows in any order, flags in the upper bits of neighbors.
struct NeighborRows {
  int n_rows;
  const int *ilist;                // [n_rows]   central atoms
  const int *numneigh;             // [n_local]  indexed by atom
  const int *const *firstneigh;    // [n_local]  indexed by atom
};

/// Per-atom data that the flattening needs; ghosts follow the local atoms.
struct AtomTable {
  int n_local;
  int n_all;
  const int *species;    // [n_all]  index into the model's elements, -1: no atom of the model
  const int *owner;      // [n_all]  local atom of which this is an image, or itself;
                         //          ~k: the k-th atom of other ranks
  int n_remote = 0;      // atoms of other ranks
};

/// Edges grouped by receiver. A node is a local atom that the model describes, in `ilist` order; a
/// ghost is an image of its owner's node, and keeps its own position in the edge vector. Atoms of
/// other ranks are nodes, too, which follow and only send.
class EdgeGraph {
 public:
  std::vector<std::int64_t> indptr;           // [n_nodes + 1] node i: [indptr[i], indptr[i + 1])
  std::vector<std::int32_t> sender;           // [n_edges]     node
  std::vector<std::int32_t> receiver_atom;    // [n_edges]     its position is the receiver's
  std::vector<std::int32_t> sender_atom;      // [n_edges]     its position is the sender's
  std::vector<std::int32_t> node_atom;        // [n_nodes]     local atom
  std::vector<std::int32_t> species;          // [n_senders]

  int n_nodes() const { return static_cast<int>(node_atom.size()); }
  int n_senders() const { return static_cast<int>(species.size()); }
  std::int64_t n_edges() const { return indptr.empty() ? 0 : indptr.back(); }

  /// Flattens the list: count, prefix sum, fill; O(edges), no sort. Throws std::runtime_error where
  /// a neighbor belongs to an atom that has no row of its own.
  void build(const NeighborRows &rows, ListKind kind, const AtomTable &atoms);

  /// Nodes without edges, in the order of the atoms, for a model that finds its pairs by itself.
  /// Returns the node of every atom, images included, -1 for atoms of other styles: [n_all].
  std::vector<std::int64_t> build_nodes(const AtomTable &atoms);

  /// Node of a local atom after either of these, -1 where the model does not describe it.
  std::int32_t node_of_local(int atom) const { return node_of_[atom]; }

 private:
  std::vector<std::int32_t> node_of_;    // [n_local]  -1 where the model does not describe the atom
  std::vector<std::int64_t> cursor_;     // [n_nodes]  next free edge of each row

  void collect_nodes(const NeighborRows &rows, const AtomTable &atoms);
  void append_remote(const AtomTable &atoms);
  int node_of(int atom, const AtomTable &atoms) const;
};

}    // namespace mace_stream

#endif
