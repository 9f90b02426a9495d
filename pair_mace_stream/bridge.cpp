// What the plugin finds in the bridge library by name.

#include "compute_mace_stream_deviation.h"
#include "pair_mace_stream.h"
#include "python_interpreter.h"

#include <string>

#define MACE_STREAM_EXPORT extern "C" __attribute__((visibility("default")))

/// Starts Python where none runs. Returns what went wrong, or an empty text.
MACE_STREAM_EXPORT const char *mace_stream_start_python()
{
  static const std::string fault = mace_stream::start_python();
  return fault.c_str();
}

/// LAMMPS' factory of the pair style: returns a Pair.
MACE_STREAM_EXPORT void *mace_stream_create_pair(void *lmp)
{
  auto *lammps = static_cast<LAMMPS_NS::LAMMPS *>(lmp);
  return static_cast<LAMMPS_NS::Pair *>(new LAMMPS_NS::PairMACEStream(lammps));
}

/// LAMMPS' factory of the compute: returns a Compute.
MACE_STREAM_EXPORT void *mace_stream_create_compute(void *lmp, int narg, char **arg)
{
  auto *lammps = static_cast<LAMMPS_NS::LAMMPS *>(lmp);
  return static_cast<LAMMPS_NS::Compute *>(
      new LAMMPS_NS::ComputeMACEStreamDeviation(lammps, narg, arg));
}
