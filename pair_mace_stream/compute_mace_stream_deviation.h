/* -*- c++ -*- ----------------------------------------------------------
   compute mace/stream/deviation: how far the models of a committee differ.
   Part of mace-stream. This file derives from LAMMPS headers and is
   distributed under the GNU General Public License, version 2 or later.
------------------------------------------------------------------------- */

#ifndef LMP_COMPUTE_MACE_STREAM_DEVIATION_H
#define LMP_COMPUTE_MACE_STREAM_DEVIATION_H

#include "compute.h"

#include <vector>

namespace LAMMPS_NS {

class ComputeMACEStreamDeviation : public Compute {
 public:
  ComputeMACEStreamDeviation(class LAMMPS *, int, char **);
  ~ComputeMACEStreamDeviation() override;

  void init() override;
  double compute_scalar() override;
  void compute_vector() override;
  void compute_peratom() override;
  double memory_usage() override;

 private:
  bool stops = false;
  double threshold = 0.0;    // force units
  int n_max = 0;             // length of vector_atom

  const std::vector<double> &deviations();
  void summarize();
};

}    // namespace LAMMPS_NS

#endif
