/* ----------------------------------------------------------------------
   pair_style mace/stream: what happens in a step.
   Part of mace-stream. This file derives from LAMMPS headers and is
   distributed under the GNU General Public License, version 2 or later.
------------------------------------------------------------------------- */

#include "pair_mace_stream_impl.h"

#include "atom.h"
#include "comm.h"
#include "compute.h"
#include "error.h"
#include "group.h"
#include "neigh_list.h"
#include "neighbor.h"
#include "update.h"
#include "utils.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

using namespace LAMMPS_NS;
using mace_stream::Stopwatch;

/* ---------------------------------------------------------------------- */

void PairMACEStream::compute(int eflag, int vflag)
{
  ev_init(eflag, vflag);
  refuse_computing();
  if (topology_is_stale()) rebuild_topology();
  if (!impl->reported) print_start_report();
  evaluate_model();
  if (eflag_global) tally_times();

  const Stopwatch::Lap lap(impl->scatter);
  add_forces();
  if (eflag_either) add_energies();
  if (vflag_either) add_virials();
}

/* ----------------------------------------------------------------------
   What would give wrong numbers without a word, and shows only now.
------------------------------------------------------------------------- */

void PairMACEStream::refuse_computing()
{
  if (!impl->set_up)
    error->all(FLERR, "Pair style mace/stream: pair_style or pair_coeff has been given since the "
                      "last run was set up, and the neighbor lists may be too short; leave out "
                      "'pre no'");
  if (num_tally_compute > 0)
    error->all(FLERR,
               "Pair style mace/stream: computes of the TALLY package add up energies of pairs, "
               "and this model has none, so that they would show zero; leave compute {} out, or "
               "below a hybrid style add: pair_modify pair mace/stream compute/tally no",
               list_tally_compute[0]->id);
}

/* ----------------------------------------------------------------------
   A new list shows by ago or by the number of builds; fixes may change
   types or the number of atoms without one (atom/swap, gcmc).
------------------------------------------------------------------------- */

bool PairMACEStream::topology_is_stale() const
{
  const auto n_all = static_cast<std::size_t>(atom->nlocal + atom->nghost);
  return neighbor->ago == 0 || neighbor->ncalls != impl->list_builds ||
         n_all != impl->types.size() ||
         !std::equal(impl->types.begin(), impl->types.end(), atom->type);
}

/* ---------------------------------------------------------------------- */

void PairMACEStream::rebuild_topology()
{
  const Stopwatch::Lap lap(impl->flatten);
  const int n_all = atom->nlocal + atom->nghost;
  const bool is_new = neighbor->ago == 0 || neighbor->ncalls != impl->list_builds;
  if (is_new && atom->nlocal > 0)
    impl->listed_x.assign(atom->x[0], atom->x[0] + 3 * static_cast<std::size_t>(atom->nlocal));
  find_species();
  if (!impl->exchange)
    find_owners();
  else if (is_new)
    connect_ranks();
  impl->types.assign(atom->type, atom->type + n_all);
  impl->list_builds = neighbor->ncalls;
  impl->rebuilds++;

  if (impl->device_list) refuse_exclusions();
  attempt([&] { hand_over_topology(); });
}

/* ---------------------------------------------------------------------- */

void PairMACEStream::hand_over_topology()
{
  const int n_all = atom->nlocal + atom->nghost;
  const mace_stream::AtomTable atoms{atom->nlocal, n_all, impl->species.data(), impl->owner.data(),
                                     static_cast<int>(impl->remote.size())};
  std::vector<std::int64_t> node;
  if (impl->device_list)
    node = impl->graph.build_nodes(atoms);
  else
    impl->graph.build({list->inum, list->ilist, list->numneigh, list->firstneigh}, impl->list_kind,
                      atoms);
  if (impl->exchange) find_sent_nodes();
  if (impl->device_list)
    impl->session->set_atoms(impl->graph, node, atom->nlocal, impl->r_max + neighbor->skin);
  else
    impl->session->set_topology(impl->graph);
  find_ids();
  impl->session->set_ids(impl->ids, impl->rows);
}

/* ---------------------------------------------------------------------- */

void PairMACEStream::find_owners()
{
  const int n_all = atom->nlocal + atom->nghost;
  impl->owner.resize(n_all);
  for (int i = 0; i < n_all; i++) {
    const int owner = i < atom->nlocal ? i : atom->map(atom->tag[i]);
    if (owner < 0 || owner >= atom->nlocal)
      error->one(FLERR,
                 "Pair style mace/stream: the owner of an image of atom {} is not on this rank",
                 atom->tag[i]);
    impl->owner[i] = owner;
  }
}

/* ----------------------------------------------------------------------
   NULL types are no atoms of the model, nor are types of which hybrid has
   given every pair to other styles. Nor are atoms of which every pair
   is excluded: fixes like gcmc mark deleted atoms so, and an isolated
   atom's energy must not stay behind. Nor are atoms outside of the group
   that `neigh_modify include` names.
------------------------------------------------------------------------- */

void PairMACEStream::find_species()
{
  const int n_all = atom->nlocal + atom->nghost;
  std::vector<int> of_type = impl->session->type_species();
  for (int type = 1; list && list->iskip && type <= atom->ntypes; type++)
    if (list->iskip[type]) of_type[type] = -1;
  impl->species.resize(n_all);
  for (int i = 0; i < n_all; i++) impl->species[i] = is_excluded(i) ? -1 : of_type[atom->type[i]];
}

/* ---------------------------------------------------------------------- */

bool PairMACEStream::is_excluded(int i) const
{
  constexpr int group_all = 0;
  if (neighbor->includegroup && !(atom->mask[i] & group->bitmask[neighbor->includegroup]))
    return true;
  for (int k = 0; k < neighbor->nex_group; k++) {
    if (neighbor->ex2_group[k] == group_all && (atom->mask[i] & neighbor->ex1_bit[k])) return true;
    if (neighbor->ex1_group[k] == group_all && (atom->mask[i] & neighbor->ex2_bit[k])) return true;
  }
  return false;
}

/* ----------------------------------------------------------------------
   Pairs that LAMMPS would leave out of its list. Those of atoms that are
   excluded from everything are no pairs of the model in the first place.
------------------------------------------------------------------------- */

void PairMACEStream::refuse_exclusions()
{
  if (excludes_pairs())
    error->all(FLERR, "Pair style mace/stream: lists made on the device know no exclusions, and "
                      "neigh_modify exclude asks for some; add the keyword: neighbors full");
}

/* ----------------------------------------------------------------------
   Messages of the model name atoms by these.
------------------------------------------------------------------------- */

void PairMACEStream::find_ids()
{
  const auto &graph = impl->graph;
  impl->rows.assign(graph.node_atom.begin(), graph.node_atom.end());
  impl->rows.resize(graph.species.size());
  for (int i = atom->nlocal; i < atom->nlocal + atom->nghost; i++)
    if (impl->owner[i] < 0 && impl->species[i] >= 0)
      impl->rows[graph.n_nodes() + ~impl->owner[i]] = i;
  impl->ids.resize(impl->rows.size());
  std::transform(impl->rows.begin(), impl->rows.end(), impl->ids.begin(),
                 [&](std::int64_t row) { return atom->tag[row]; });
}

/* ---------------------------------------------------------------------- */

void PairMACEStream::evaluate_model()
{
  const Stopwatch::Lap lap(impl->model);
  const int n_all = atom->nlocal + atom->nghost;
  mace_stream::Wanted wanted;
  wanted.node_energy = eflag_atom;
  wanted.node_virial = vflag_atom || cvflag_atom;
  impl->evaluations++;
  impl->evaluation++;
  impl->n_evaluated = atom->nlocal;

  // one rank can fail alone, but not stop alone

  if (impl->exchange) impl->exchange->begin();
  attempt([&] {
    check_positions();
    impl->result = &impl->session->evaluate(n_all > 0 ? atom->x[0] : nullptr, n_all, wanted);
  });
  name_failure();
  if (impl->exchange)
    settle_exchanges(wanted.node_virial);
  else
    stop_if_failed();
}

/* ----------------------------------------------------------------------
   Pairs at a distance of NaN or infinity are beyond every cutoff, so that
   the atom would be alone, with an energy and no force.
------------------------------------------------------------------------- */

void PairMACEStream::check_positions()
{
  for (const int i : impl->graph.node_atom) {
    const double *x = atom->x[i];
    if (std::fabs(x[0]) < FARTHEST && std::fabs(x[1]) < FARTHEST && std::fabs(x[2]) < FARTHEST) {
      if (!impl->told_stale) warn_of_stale_list(i);
      continue;
    }
    throw std::runtime_error(fmt::format(
        "atom {} is at ({:.8g}, {:.8g}, {:.8g}) Å, which is no place in any box; look at the steps "
        "before, and use a smaller timestep",
        atom->tag[i], x[0], x[1], x[2]));
  }
}

/* ----------------------------------------------------------------------
   LAMMPS makes a new list in time, unless neigh_modify says otherwise.
------------------------------------------------------------------------- */

void PairMACEStream::warn_of_stale_list(int i)
{
  const double *now = atom->x[i], *then = &impl->listed_x[3 * static_cast<std::size_t>(i)];
  double square = 0.0;    // a root for every atom and step would show
  for (int k = 0; k < 3; k++) square += (now[k] - then[k]) * (now[k] - then[k]);
  if (square <= 0.25 * neighbor->skin * neighbor->skin * (1 + 1e-9)) return;
  impl->told_stale = true;
  error->warning(FLERR,
                 "Pair style mace/stream: at step {} atom {} has moved by {:.3g} Å since the "
                 "neighbor list was made, more than half of the skin, so that pairs may be "
                 "missing; use neigh_modify every 1 delay 0 check yes",
                 update->ntimestep, atom->tag[i], std::sqrt(square));
}

/* ----------------------------------------------------------------------
   Forces arrive summed over all images of an atom, so ghosts get none
   and newton on or off makes no difference.
------------------------------------------------------------------------- */

void PairMACEStream::add_forces()
{
  double **f = atom->f;
  const auto &forces = impl->result->forces;
  for (int node = 0; node < impl->graph.n_nodes(); node++) {
    const int i = impl->graph.node_atom[node];
    for (int k = 0; k < 3; k++) f[i][k] += impl->energy_scale * forces[3 * node + k];
  }
}

/* ---------------------------------------------------------------------- */

void PairMACEStream::add_energies()
{
  if (eflag_global) eng_vdwl += impl->energy_scale * impl->result->energy;
  if (!eflag_atom) return;
  for (int node = 0; node < impl->graph.n_nodes(); node++)
    eatom[impl->graph.node_atom[node]] += impl->energy_scale * impl->result->node_energy[node];
}

/* ----------------------------------------------------------------------
   W_ab = -sum over edges of edge_vec_a dE/d(edge_vec_b).
   Per atom, 6 components: half to either end of an edge.
   Per atom, 9 components: all to the sender, as the heat flux of site
   energies within one cutoff wants it (Fan et al., Phys. Rev. B 92, 094301
   (2015)); with several layers that is an approximation (Langer et al.,
   Phys. Rev. B 108, L100302 (2023)).
------------------------------------------------------------------------- */

void PairMACEStream::add_virials()
{
  static constexpr int order[9] = {0, 4, 8, 1, 2, 5, 3, 6, 7};    // xx yy zz xy xz yz yx zx zy
  const double scale = impl->energy_scale;
  const auto &result = *impl->result;
  if (vflag_global)
    for (int k = 0; k < 6; k++) virial[k] += scale * result.virial[order[k]];
  for (int node = 0; node < impl->graph.n_nodes() && (vflag_atom || cvflag_atom); node++) {
    const int i = impl->graph.node_atom[node];
    const double *received = &result.receiver_virial[9 * node];
    const double *sent = &result.sender_virial[9 * node];
    if (vflag_atom)
      for (int k = 0; k < 6; k++)
        vatom[i][k] += 0.5 * scale * (received[order[k]] + sent[order[k]]);
    if (cvflag_atom)
      for (int k = 0; k < 9; k++) cvatom[i][k] += scale * sent[order[k]];
  }
}
