// More than 2^31 edges through EdgeGraph::build. Large allocations are the same 64 MiB of memory
// again and again, so that arrays of 9 GB take none; what was written last can be read.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <new>

#include "edge_graph.h"

namespace {
constexpr std::size_t LARGE = 1u << 30, WINDOW = 1u << 26;

void* wrapped(std::size_t size) {
  const std::size_t whole = (size + WINDOW - 1) / WINDOW * WINDOW;
  const int reserve = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  char* base = static_cast<char*>(mmap(nullptr, whole, PROT_NONE, reserve, -1, 0));
  const int memory = memfd_create("wrapped", 0);
  if (base == MAP_FAILED || memory < 0 || ftruncate(memory, WINDOW)) throw std::bad_alloc();
  for (std::size_t at = 0; at < whole; at += WINDOW)
    if (mmap(base + at, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory, 0) ==
        MAP_FAILED)
      throw std::bad_alloc();
  close(memory);
  return base;
}
}  // namespace

void* operator new(std::size_t size) {
  if (size >= LARGE) return wrapped(size);
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void*) noexcept {}  // the program ends soon
void operator delete(void*, std::size_t) noexcept {}

using namespace mace_stream;

/// Every atom has all atoms as neighbors, many times over; all rows are the same array.
int main() {
  const int n_atoms = 2100, n_neighbors = 1 << 20;
  std::vector<int> ilist(n_atoms), numneigh(n_atoms, n_neighbors), row(n_neighbors);
  std::vector<int> species(n_atoms, 0);
  for (int i = 0; i < n_atoms; i++) ilist[i] = i;
  for (int k = 0; k < n_neighbors; k++) row[k] = k % n_atoms;
  const std::vector<const int*> firstneigh(n_atoms, row.data());

  EdgeGraph graph;
  graph.build({n_atoms, ilist.data(), numneigh.data(), firstneigh.data()}, ListKind::FULL,
              {n_atoms, n_atoms, species.data(), ilist.data()});

  int wrong = 0;
  for (int i = 0; i <= n_atoms; i++) wrong += graph.indptr[i] != std::int64_t(i) * n_neighbors;
  const std::int64_t last = graph.indptr[n_atoms - 1];
  for (int k = 0; k < n_neighbors; k++)
    wrong += graph.sender[last + k] != row[k] || graph.sender_atom[last + k] != row[k] ||
             graph.receiver_atom[last + k] != n_atoms - 1;
  std::printf("%lld edges, %d wrong\n", static_cast<long long>(graph.n_edges()), wrong);
  std::fflush(stdout);
  std::_Exit(wrong ? 1 : 0);
}
