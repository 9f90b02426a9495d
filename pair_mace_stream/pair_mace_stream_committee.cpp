/* ----------------------------------------------------------------------
   pair_style mace/stream: how far the models of a committee differ.
   Part of mace-stream. This file derives from LAMMPS headers and is
   distributed under the GNU General Public License, version 2 or later.
------------------------------------------------------------------------- */

#include "pair_mace_stream_impl.h"

#include "atom.h"
#include "update.h"

#include <cmath>
#include <stdexcept>

using namespace LAMMPS_NS;

/* ---------------------------------------------------------------------- */

int PairMACEStream::n_models() const
{
  return impl->session ? impl->session->n_models() : 0;
}

/* ----------------------------------------------------------------------
   Lets the failure of an evaluation say where it happened.
------------------------------------------------------------------------- */

void PairMACEStream::name_failure()
{
  if (impl->failure.empty()) return;
  const std::string who = n_models() > 1 ? "committee" : "model " + impl->model_path;
  impl->failure = fmt::format("{} failed at step {}: {}", who, update->ntimestep, impl->failure);
}

/* ----------------------------------------------------------------------
   Once per evaluation, however many computes ask.
------------------------------------------------------------------------- */

const std::vector<double> &PairMACEStream::force_deviations()
{
  attempt([&] {
    if (impl->n_evaluated != atom->nlocal)
      throw std::runtime_error("no forces have been computed for these atoms; type run 0 before");
  });
  stop_if_failed();
  if (impl->deviations_of != impl->evaluation) evaluate_others();
  return impl->deviations;
}

/* ----------------------------------------------------------------------
   Forces of all models where the last evaluation was; forces on other
   ranks' nodes go to their owners, model by model.
------------------------------------------------------------------------- */

void PairMACEStream::evaluate_others()
{
  const mace_stream::Stopwatch::Lap lap(impl->model);
  auto *exchange = impl->exchange.get();
  std::vector<std::vector<double>> *forces = nullptr;
  std::vector<bool> usual;
  if (exchange) {
    usual = exchange->expect(impl->session->other_exchanges());
    exchange->begin();
  }
  attempt([&] { forces = &impl->session->all_forces(); });
  name_failure();
  try {
    if (exchange)
      settle_messages();
    else
      stop_if_failed();
  } catch (...) {
    if (exchange) exchange->expect(usual);
    throw;
  }
  if (exchange) {
    exchange->expect(usual);
    const mace_stream::Stopwatch::Lap settling(impl->settling);
    for (auto &rows : *forces)
      exchange->add_home(rows.data(), static_cast<std::size_t>(impl->graph.n_nodes()), 3);
  }
  find_deviations(*forces);
}

/* ----------------------------------------------------------------------
   sqrt(<|F - <F>|^2>), means over the models: the model deviation of
   Y. Zhang et al., Comput. Phys. Commun. 253, 107206 (2020).
------------------------------------------------------------------------- */

void PairMACEStream::find_deviations(const std::vector<std::vector<double>> &forces)
{
  const auto n_models = static_cast<double>(forces.size());
  impl->deviations.assign(impl->n_evaluated, -1.0);
  for (int node = 0; node < impl->graph.n_nodes(); node++) {
    double sum = 0.0;
    for (int k = 3 * node; k < 3 * node + 3; k++) {
      double mean = 0.0;
      for (const auto &rows : forces) mean += rows[k] / n_models;
      for (const auto &rows : forces) sum += (rows[k] - mean) * (rows[k] - mean);
    }
    impl->deviations[impl->graph.node_atom[node]] = impl->energy_scale * std::sqrt(sum / n_models);
  }
  impl->deviations_of = impl->evaluation;
}
