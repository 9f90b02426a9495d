/* ----------------------------------------------------------------------
   pair_style mace/stream: what is printed, and where time goes.
   Part of mace-stream. This file derives from LAMMPS headers and is
   distributed under the GNU General Public License, version 2 or later.
------------------------------------------------------------------------- */

#include "pair_mace_stream_impl.h"

#include "atom.h"
#include "comm.h"
#include "force.h"
#include "neighbor.h"
#include "update.h"
#include "utils.h"

#include <algorithm>

using namespace LAMMPS_NS;
using mace_stream::Timings;

/* ---------------------------------------------------------------------- */

void PairMACEStream::print_start_report()
{
  stop_if_failed();
  impl->reported = true;
  const int n_all = atom->nlocal + atom->nghost;
  bigint counts[2] = {impl->graph.n_nodes(), 0}, totals[2];
  std::string place, text;
  attempt([&] {
    counts[1] = impl->session->take_list(n_all > 0 ? atom->x[0] : nullptr, n_all);
    place = impl->session->placement();
  });
  stop_if_failed();
  MPI_Allreduce(counts, totals, 2, MPI_LMP_BIGINT, MPI_SUM, world);

  const char *kinds[] = {"full", "half, newton on", "half, newton off"};
  mace_stream::Facts facts;
  facts["list"] =
      impl->device_list ? "made on the device" : kinds[static_cast<int>(impl->list_kind)];
  // comm->cutghost is in fractions of the box where that is triclinic
  const double ghost_cutoff = std::max(comm->cutghostuser, neighbor->cutneighmax);
  facts["ghost_cutoff"] = fmt::format("{:.6g}", ghost_cutoff);
  facts["skin"] = fmt::format("{:.6g}", neighbor->skin);
  facts["lammps"] = lmp->version;
  facts["units"] = update->unit_style;
  facts["atoms"] = std::to_string(totals[0]);
  facts["edges"] = std::to_string(totals[1]);
  if (force->pair_match("zbl", 0)) facts["zbl"] = "another style";
  if (impl->exchange) facts["ranks"] = gather_lines(place);
  attempt([&] { text = impl->session->start_report(facts); });
  stop_if_failed();
  if (comm->me == 0) utils::logmesg(lmp, text);
  attempt([&] { text = impl->session->verify(n_all > 0 ? atom->x[0] : nullptr, n_all); });
  stop_if_failed();
  if (comm->me == 0) utils::logmesg(lmp, text);
}

/* ----------------------------------------------------------------------
   The lines of all ranks, on rank 0. Collective.
------------------------------------------------------------------------- */

std::string PairMACEStream::gather_lines(const std::string &line)
{
  constexpr int width = 160;
  std::string mine = line, all;
  mine.resize(width, ' ');
  all.resize(comm->me == 0 ? width * comm->nprocs : 0);
  MPI_Gather(mine.data(), width, MPI_CHAR, &all[0], width, MPI_CHAR, 0, world);
  std::string lines;
  for (std::size_t start = 0; start < all.size(); start += width)
    lines += utils::trim(all.substr(start, width)) + "\n";
  return lines;
}

/* ----------------------------------------------------------------------
   End of a run: where the time went. Other ranks than the first have the
   same keys.
------------------------------------------------------------------------- */

void PairMACEStream::finish()
{
  if (impl->evaluations == 0) return;
  Timings mine;
  mine["flatten_s"] = impl->flatten.take();
  mine["evaluate_s"] = impl->model.take();
  mine["messages_s"] = impl->messages.take();
  mine["exchange_s"] = mine["messages_s"] + impl->settling.take();
  mine["scatter_s"] = impl->scatter.take();
  mine["evaluations"] = static_cast<double>(impl->evaluations);
  mine["rebuilds"] = static_cast<double>(impl->rebuilds);
  mine["atoms"] = impl->graph.n_nodes();
  mine["own_s"] = mine["evaluate_s"] - mine["exchange_s"];
  impl->evaluations = impl->rebuilds = 0;
  impl->tallied = {};
  std::string text;
  attempt([&] {
    for (const auto &[name, value] : impl->session->take_statistics()) mine[name] = value;
  });
  stop_if_failed();
  const Timings sum = over_ranks(mine, MPI_SUM), most = over_ranks(mine, MPI_MAX);
  attempt([&] { text = impl->session->end_report(sum, most, comm->nprocs); });
  stop_if_failed();
  if (comm->me == 0) utils::logmesg(lmp, text);
}

/* ---------------------------------------------------------------------- */

Timings PairMACEStream::over_ranks(const Timings &mine, MPI_Op operation)
{
  std::vector<double> values;
  for (const auto &[name, value] : mine) values.push_back(value);
  std::vector<double> reduced(values.size());
  MPI_Allreduce(values.data(), reduced.data(), static_cast<int>(values.size()), MPI_DOUBLE,
                operation, world);
  Timings result;
  auto next = reduced.begin();
  for (const auto &[name, value] : mine) result[name] = *next++;
  return result;
}

/* ----------------------------------------------------------------------
   For compute pair, averages since the last step with an energy:
   1 = milliseconds per step, 2 = share of the exchange, 3 = imbalance, by
   how much the slowest rank exceeds the mean. compute pair adds up ranks.
------------------------------------------------------------------------- */

void PairMACEStream::tally_times()
{
  const double total = impl->model.seconds() - impl->tallied.model;
  const double exchanging_so_far = impl->messages.seconds() + impl->settling.seconds();
  const double exchanging = exchanging_so_far - impl->tallied.exchanging;
  const auto steps = static_cast<double>(impl->evaluations - impl->tallied.evaluations);
  double mine[3] = {total, exchanging, total - exchanging}, sum[3], most[3];
  MPI_Allreduce(mine, sum, 3, MPI_DOUBLE, MPI_SUM, world);
  MPI_Allreduce(mine, most, 3, MPI_DOUBLE, MPI_MAX, world);
  impl->tallied = {impl->model.seconds(), exchanging_so_far, impl->evaluations};
  std::fill_n(pvector, nextra, 0.0);
  if (comm->me != 0) return;
  pvector[0] = 1e3 * most[0] / steps;
  pvector[1] = sum[1] / sum[0];
  pvector[2] = most[2] * comm->nprocs / sum[2] - 1.0;
}
