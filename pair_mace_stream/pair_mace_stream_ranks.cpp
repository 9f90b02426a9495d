/* ----------------------------------------------------------------------
   pair_style mace/stream: what several ranks do together.
   Part of mace-stream. This file derives from LAMMPS headers and is
   distributed under the GNU General Public License, version 2 or later.
------------------------------------------------------------------------- */

#include "pair_mace_stream_impl.h"

#include "atom.h"
#include "comm.h"
#include "error.h"

#include <sched.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <stdexcept>

using namespace LAMMPS_NS;
using mace_stream::RemoteAtom;

/* ----------------------------------------------------------------------
   Every ghost learns whose atom it is an image of. Collective.
------------------------------------------------------------------------- */

void PairMACEStream::connect_ranks()
{
  const int nlocal = atom->nlocal, n_all = nlocal + atom->nghost;
  impl->home.resize(2 * n_all);
  for (int i = 0; i < nlocal; i++) {
    impl->home[2 * i] = comm->me;
    impl->home[2 * i + 1] = i;
  }
  comm->forward_comm(this, HOME_WIDTH);

  const auto home = [&](int i) {
    return RemoteAtom{static_cast<int>(impl->home[2 * i]), static_cast<int>(impl->home[2 * i + 1])};
  };
  std::vector<RemoteAtom> &remote = impl->remote;
  remote.clear();
  for (int i = nlocal; i < n_all; i++)
    if (impl->species[i] >= 0 && home(i).rank != comm->me) remote.push_back(home(i));
  std::sort(remote.begin(), remote.end());
  remote.erase(std::unique(remote.begin(), remote.end()), remote.end());
  impl->exchange->connect(remote);

  impl->owner.assign(n_all, ~0);
  for (int i = 0; i < n_all; i++) {
    if (home(i).rank == comm->me)
      impl->owner[i] = home(i).atom;
    else if (impl->species[i] >= 0)
      impl->owner[i] = ~static_cast<int>(std::lower_bound(remote.begin(), remote.end(), home(i)) -
                                         remote.begin());
  }
}

/* ---------------------------------------------------------------------- */

int PairMACEStream::pack_forward_comm(int n, int *list, double *buf, int, int *)
{
  for (int k = 0; k < n; k++)
    std::copy_n(&impl->home[HOME_WIDTH * list[k]], HOME_WIDTH, buf + HOME_WIDTH * k);
  return HOME_WIDTH * n;
}

/* ---------------------------------------------------------------------- */

void PairMACEStream::unpack_forward_comm(int n, int first, double *buf)
{
  std::copy_n(buf, HOME_WIDTH * n, &impl->home[HOME_WIDTH * first]);
}

/* ----------------------------------------------------------------------
   Nodes that other ranks asked for, once the graph is known.
------------------------------------------------------------------------- */

void PairMACEStream::find_sent_nodes()
{
  auto &exchange = *impl->exchange;
  exchange.sent.clear();
  for (const int i : exchange.requested()) {
    const int node = impl->graph.node_of_local(i);
    if (node < 0)
      throw std::runtime_error(fmt::format(
          "atom {} is a neighbor on another rank, but is no atom of the model here", atom->tag[i]));
    exchange.sent.push_back(node);
  }
  impl->session->set_exchange(exchange);
}

/* ----------------------------------------------------------------------
   Remembers the first failure of this rank and goes on: the others wait
   for its messages, and `stop_if_failed` ends all ranks together.
------------------------------------------------------------------------- */

void PairMACEStream::attempt(const std::function<void()> &body)
{
  if (!impl->failure.empty()) return;
  try {
    body();
  } catch (const std::exception &e) {
    impl->failure = *e.what() ? e.what() : "unknown failure";
    impl->failed_at = impl->exchange ? impl->exchange->n_started() : 0;
  }
}

/* ----------------------------------------------------------------------
   Collective. Of several failures the earliest one is the cause.
------------------------------------------------------------------------- */

void PairMACEStream::stop_if_failed()
{
  struct {
    int when, rank;
  } mine{impl->failure.empty() ? INT_MAX : impl->failed_at, comm->me}, first = mine;
  if (comm->nprocs > 1) MPI_Allreduce(&mine, &first, 1, MPI_2INT, MPI_MINLOC, world);
  if (first.when == INT_MAX) return;

  std::string text = impl->failure;
  impl->failure.clear();
  if (comm->nprocs > 1) {
    int length = static_cast<int>(text.size());
    MPI_Bcast(&length, 1, MPI_INT, first.rank, world);
    text.resize(length);
    MPI_Bcast(&text[0], length, MPI_CHAR, first.rank, world);
    text += fmt::format(" (on rank {} of {})", first.rank, comm->nprocs);
  }
  error->all(FLERR, "Pair style mace/stream: {}", text);
}

/* ----------------------------------------------------------------------
   After an evaluation: the messages that a failed rank still owes, then
   forces and virials of other ranks' nodes to their owners.
------------------------------------------------------------------------- */

void PairMACEStream::settle_exchanges(bool node_virial)
{
  settle_messages();
  const mace_stream::Stopwatch::Lap lap(impl->settling);
  auto &exchange = *impl->exchange;
  const auto n_nodes = static_cast<std::size_t>(impl->graph.n_nodes());
  exchange.add_home(impl->result->forces.data(), n_nodes, 3);
  if (node_virial) exchange.add_home(impl->result->sender_virial.data(), n_nodes, 9);
}

/* ---------------------------------------------------------------------- */

void PairMACEStream::settle_messages()
{
  auto &exchange = *impl->exchange;
  attempt([&] {
    if (exchange.n_started() != exchange.n_expected())
      throw std::runtime_error(fmt::format("the model made {} exchanges instead of {}",
                                           exchange.n_started(), exchange.n_expected()));
  });
  const mace_stream::Stopwatch::Lap lap(impl->settling);
  if (!impl->failure.empty()) exchange.abandon();
  stop_if_failed();
  exchange.succeed();
}

/* ----------------------------------------------------------------------
   Where this rank stands among those of its node. Collective.
------------------------------------------------------------------------- */

mace_stream::Launch PairMACEStream::find_launch()
{
  mace_stream::Launch launch;
  MPI_Comm node;
  MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &launch["node_rank"]);
  MPI_Comm_size(node, &launch["node_ranks"]);
  MPI_Comm_size(MPI_COMM_WORLD, &launch["mpi_ranks"]);    // no communication
  launch["takes_gpu_memory"] = mace_stream::mpi_takes_gpu_memory();

  // ranks that may use the very same cores

  cpu_set_t mine;
  CPU_ZERO(&mine);
  sched_getaffinity(0, sizeof(mine), &mine);
  std::vector<cpu_set_t> all(launch["node_ranks"]);
  MPI_Allgather(&mine, sizeof(mine), MPI_BYTE, all.data(), sizeof(mine), MPI_BYTE, node);
  launch["same_cores"] =
      static_cast<int>(std::count_if(all.begin(), all.end(), [&](const cpu_set_t &other) {
        return std::memcmp(&mine, &other, sizeof(mine)) == 0;
      }));
  MPI_Comm_free(&node);
  return launch;
}
