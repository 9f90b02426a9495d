/* ----------------------------------------------------------------------
   compute mace/stream/deviation: how far the models of a committee differ.
   Part of mace-stream. This file derives from LAMMPS headers and is
   distributed under the GNU General Public License, version 2 or later.
------------------------------------------------------------------------- */

#include "compute_mace_stream_deviation.h"

#include "pair_mace_stream.h"

#include "atom.h"
#include "comm.h"
#include "error.h"
#include "force.h"
#include "memory.h"
#include "update.h"
#include "utils.h"

#include <algorithm>
#include <cstring>
#include <limits>

using namespace LAMMPS_NS;

/* ----------------------------------------------------------------------
   compute ID group mace/stream/deviation [stop THRESHOLD]
------------------------------------------------------------------------- */

ComputeMACEStreamDeviation::ComputeMACEStreamDeviation(LAMMPS *lmp, int narg, char **arg) :
    Compute(lmp, narg, arg)
{
  if (narg != 3 && (narg != 5 || strcmp(arg[3], "stop") != 0))
    error->all(FLERR, "Compute mace/stream/deviation: expected compute ID group "
                      "mace/stream/deviation, and after it at most: stop THRESHOLD");
  stops = narg == 5;
  if (stops) threshold = utils::numeric(FLERR, arg[4], false, lmp);
  if (stops && !(threshold > 0.0))
    error->all(FLERR, "Compute mace/stream/deviation: stop needs a force above 0, got {}", arg[4]);

  scalar_flag = vector_flag = peratom_flag = 1;
  size_vector = 3;
  size_peratom_cols = 0;
  extscalar = extvector = 0;
  vector = new double[size_vector]();
}

/* ---------------------------------------------------------------------- */

ComputeMACEStreamDeviation::~ComputeMACEStreamDeviation()
{
  delete[] vector;
  memory->destroy(vector_atom);
}

/* ---------------------------------------------------------------------- */

void ComputeMACEStreamDeviation::init()
{
  auto *pair = static_cast<PairMACEStream *>(force->pair_match("mace/stream", 1));
  if (!pair)
    error->all(FLERR, "Compute mace/stream/deviation: needs one pair style mace/stream, on its own "
                      "or below a hybrid style; this input has none, or several");
  if (pair->n_models() < 2)
    error->all(FLERR,
               "Compute mace/stream/deviation: needs several models to compare; name them in "
               "pair_coeff, with a colon behind the last: pair_coeff * * A.mace B.mace : ...");
}

/* ----------------------------------------------------------------------
   The models are evaluated when this is asked for, not before. The pair
   style may be another one than at the last `init`.
------------------------------------------------------------------------- */

const std::vector<double> &ComputeMACEStreamDeviation::deviations()
{
  init();
  return static_cast<PairMACEStream *>(force->pair_match("mace/stream", 1))->force_deviations();
}

/* ---------------------------------------------------------------------- */

double ComputeMACEStreamDeviation::compute_scalar()
{
  invoked_scalar = update->ntimestep;
  summarize();
  scalar = vector[0];
  return scalar;
}

/* ---------------------------------------------------------------------- */

void ComputeMACEStreamDeviation::compute_vector()
{
  invoked_vector = update->ntimestep;
  summarize();
}

/* ----------------------------------------------------------------------
   Zero for atoms outside of the group, as in LAMMPS' own computes, and
   for those that no model describes.
------------------------------------------------------------------------- */

void ComputeMACEStreamDeviation::compute_peratom()
{
  invoked_peratom = update->ntimestep;
  if (stops) summarize();
  const auto &found = deviations();
  if (atom->nmax > n_max) {
    memory->destroy(vector_atom);
    n_max = atom->nmax;
    memory->create(vector_atom, n_max, "mace/stream/deviation:vector_atom");
  }
  for (int i = 0; i < atom->nlocal; i++)
    vector_atom[i] = (atom->mask[i] & groupbit) ? std::max(found[i], 0.0) : 0.0;
}

/* ----------------------------------------------------------------------
   Largest, smallest and mean deviation of the group's atoms of the model.
------------------------------------------------------------------------- */

void ComputeMACEStreamDeviation::summarize()
{
  const auto &found = deviations();
  struct {
    double value;
    int rank;
  } largest{-1.0, comm->me}, most;
  double smallest = std::numeric_limits<double>::max(), least;
  double sums[2] = {0.0, 0.0}, totals[2];    // of the deviations, and how many
  tagint id = 0;
  for (int i = 0; i < atom->nlocal; i++) {
    if (!(atom->mask[i] & groupbit) || found[i] < 0.0) continue;
    if (found[i] > largest.value) id = atom->tag[i];
    largest.value = std::max(largest.value, found[i]);
    smallest = std::min(smallest, found[i]);
    sums[0] += found[i];
    sums[1] += 1.0;
  }
  MPI_Allreduce(&largest, &most, 1, MPI_DOUBLE_INT, MPI_MAXLOC, world);
  MPI_Allreduce(&smallest, &least, 1, MPI_DOUBLE, MPI_MIN, world);
  MPI_Allreduce(sums, totals, 2, MPI_DOUBLE, MPI_SUM, world);
  const bool any = totals[1] > 0.0;
  vector[0] = any ? most.value : 0.0;
  vector[1] = any ? least : 0.0;
  vector[2] = any ? totals[0] / totals[1] : 0.0;
  if (!stops || vector[0] <= threshold) return;
  MPI_Bcast(&id, 1, MPI_LMP_TAGINT, most.rank, world);
  error->all(
      FLERR,
      "Compute mace/stream/deviation: at step {} the models differ by {:.6g} in the force on "
      "atom {}, more than stop {:.6g}; train with configurations like this one, or raise "
      "the threshold",
      update->ntimestep, vector[0], id, threshold);
}

/* ---------------------------------------------------------------------- */

double ComputeMACEStreamDeviation::memory_usage()
{
  return static_cast<double>(n_max) * sizeof(double);
}
