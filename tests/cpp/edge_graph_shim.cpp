// A C face of EdgeGraph for the tests, which call it from Python.

#include <cstring>
#include <string>

#include "edge_graph.h"

using namespace mace_stream;

namespace {
EdgeGraph graph;
std::string fault;

template <typename T>
void copy(const std::vector<T>& from, T* to) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size() * sizeof(T));
}
}  // namespace

extern "C" {

/// Flattens a list given as offsets into one array of neighbors. Returns what went wrong, or an
/// empty text.
const char* flatten(int kind, int n_rows, const int* ilist, const int* numneigh,
                    const std::int64_t* offsets, const int* neighbors, int n_local, int n_all,
                    const int* type, const int* owner, int n_remote, const int* type_species) {
  std::vector<const int*> firstneigh(n_local);
  for (int i = 0; i < n_local; i++) firstneigh[i] = neighbors + offsets[i];
  std::vector<int> species(n_all);
  for (int i = 0; i < n_all; i++) species[i] = type_species[type[i]];
  fault.clear();
  try {
    graph.build({n_rows, ilist, numneigh, firstneigh.data()}, static_cast<ListKind>(kind),
                {n_local, n_all, species.data(), owner, n_remote});
  } catch (const std::exception& e) {
    fault = e.what();
  }
  return fault.c_str();
}

int count_nodes() { return graph.n_nodes(); }
int count_senders() { return graph.n_senders(); }
std::int64_t count_edges() { return graph.n_edges(); }
int offset_bytes() { return sizeof(decltype(graph.indptr)::value_type); }

void copy_nodes(std::int64_t* indptr, std::int32_t* node_atom, std::int32_t* species) {
  copy(graph.indptr, indptr);
  copy(graph.node_atom, node_atom);
  copy(graph.species, species);
}

void copy_edges(std::int32_t* sender, std::int32_t* receiver_atom, std::int32_t* sender_atom) {
  copy(graph.sender, sender);
  copy(graph.receiver_atom, receiver_atom);
  copy(graph.sender_atom, sender_atom);
}
}
