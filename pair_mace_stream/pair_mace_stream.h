/* -*- c++ -*- ----------------------------------------------------------
   pair_style mace/stream: MACE machine-learned interatomic potentials.
   Part of mace-stream. This file derives from LAMMPS headers and is
   distributed under the GNU General Public License, version 2 or later.
------------------------------------------------------------------------- */

#ifndef LMP_PAIR_MACE_STREAM_H
#define LMP_PAIR_MACE_STREAM_H

#include "pair.h"

namespace LAMMPS_NS {

class PairMACEStream : public Pair {
 public:
  PairMACEStream(class LAMMPS *);
  ~PairMACEStream() override;

  void settings(int, char **) override;
  void coeff(int, char **) override;
  void init_style() override;
  double init_one(int, int) override;
  void compute(int, int) override;
  void finish() override;
  void *extract(const char *, int &) override;
  double memory_usage() override;

 private:
  struct Impl;
  Impl *impl;

  void check_environment();
  void check_special_bonds();
  void choose_list();
  void check_masses();
  void check_types() const;
  void allocate();
  bool topology_is_stale() const;
  void rebuild_topology();
  void find_owners();
  void find_species();
  void refuse_exclusions();
  bool is_excluded(int) const;
  void print_start_report();
  void evaluate_model();
  void add_forces();
  void add_energies();
  void add_virials();
};

}    // namespace LAMMPS_NS

#endif
