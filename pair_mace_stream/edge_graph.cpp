#include "edge_graph.h"

#include <stdexcept>
#include <string>

namespace mace_stream {
namespace {

// The three upper bits carry special-bond and history flags (NEIGHMASK in LAMMPS' lmptype.h).
constexpr int NEIGHBOR_MASK = 0x1FFFFFFF;

/// Calls `visit(receiver_atom, sender_atom)` for every directed edge of the list, in list order.
template <typename Visit>
void for_each_edge(const NeighborRows &rows, ListKind kind, const AtomTable &atoms, Visit visit)
{
  for (int row = 0; row < rows.n_rows; row++) {
    const int i = rows.ilist[row];
    if (atoms.species[i] < 0) continue;
    for (int k = 0; k < rows.numneigh[i]; k++) {
      const int j = rows.firstneigh[i][k] & NEIGHBOR_MASK;
      if (atoms.species[j] < 0) continue;
      visit(i, j);
      const bool reverse_is_ours = kind == ListKind::HALF_NEWTON_ON ||
                                   (kind == ListKind::HALF_NEWTON_OFF && j < atoms.n_local);
      if (reverse_is_ours) visit(j, i);
    }
  }
}

}    // namespace

void EdgeGraph::collect_nodes(const NeighborRows &rows, const AtomTable &atoms)
{
  node_of_.assign(atoms.n_local, -1);
  node_atom.clear();
  species.clear();
  for (int row = 0; row < rows.n_rows; row++) {
    const int i = rows.ilist[row];
    if (atoms.species[i] < 0) continue;
    node_of_[i] = n_nodes();
    node_atom.push_back(i);
    species.push_back(atoms.species[i]);
  }
  append_remote(atoms);
}

void EdgeGraph::append_remote(const AtomTable &atoms)
{
  species.resize(n_nodes() + atoms.n_remote, 0);
  for (int i = atoms.n_local; i < atoms.n_all; i++)
    if (atoms.species[i] >= 0 && atoms.owner[i] < 0) species[node_of(i, atoms)] = atoms.species[i];
}

int EdgeGraph::node_of(int atom, const AtomTable &atoms) const
{
  const int owner = atoms.owner[atom];
  return owner < 0 ? n_nodes() + ~owner : node_of_[owner];
}

void EdgeGraph::build(const NeighborRows &rows, ListKind kind, const AtomTable &atoms)
{
  collect_nodes(rows, atoms);
  const auto node = [&](int atom) {
    const int found = node_of(atom, atoms);
    if (found < 0)
      throw std::runtime_error("neighbor list: atom " + std::to_string(atom) +
                               " is a neighbor, but its owner has no row in the list");
    return found;
  };

  // Count the edges of every receiver.

  indptr.assign(n_nodes() + 1, 0);
  for_each_edge(rows, kind, atoms, [&](int receiver, int) { indptr[node(receiver) + 1]++; });

  // Turn counts into offsets.

  for (int i = 0; i < n_nodes(); i++) indptr[i + 1] += indptr[i];
  cursor_.assign(indptr.begin(), indptr.end() - 1);

  // Write each edge to the next free place of its receiver.

  sender.resize(n_edges());
  receiver_atom.resize(n_edges());
  sender_atom.resize(n_edges());
  for_each_edge(rows, kind, atoms, [&](int receiver, int from) {
    const std::int64_t edge = cursor_[node(receiver)]++;
    sender[edge] = node(from);
    receiver_atom[edge] = receiver;
    sender_atom[edge] = from;
  });
}

std::vector<std::int64_t> EdgeGraph::build_nodes(const AtomTable &atoms)
{
  node_atom.clear();
  species.clear();
  node_of_.assign(atoms.n_local, -1);
  for (int i = 0; i < atoms.n_local; i++) {
    if (atoms.species[i] < 0) continue;
    node_of_[i] = n_nodes();
    node_atom.push_back(i);
    species.push_back(atoms.species[i]);
  }
  append_remote(atoms);
  indptr.assign(node_atom.size() + 1, 0);
  sender.clear();
  receiver_atom.clear();
  sender_atom.clear();

  std::vector<std::int64_t> node(atoms.n_all, -1);
  for (int i = 0; i < atoms.n_all; i++)
    if (atoms.species[i] >= 0) node[i] = node_of(i, atoms);
  return node;
}

}    // namespace mace_stream
