/* -*- c++ -*- ----------------------------------------------------------
   pair_style mace/stream: MACE machine-learned interatomic potentials.
   Part of mace-stream. This file derives from LAMMPS headers and is
   distributed under the GNU General Public License, version 2 or later.
------------------------------------------------------------------------- */

#ifndef LMP_PAIR_MACE_STREAM_H
#define LMP_PAIR_MACE_STREAM_H

#include "pair.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

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
  void write_restart(FILE *) override;
  void read_restart(FILE *) override;
  void write_restart_settings(FILE *) override;
  void read_restart_settings(FILE *) override;
  int pack_forward_comm(int, int *, double *, int, int *) override;
  void unpack_forward_comm(int, int, double *) override;
  double memory_usage() override;

  /// More than one is a committee; 0 before pair_coeff.
  int n_models() const;
  /// Deviation of every local atom's force over the models of a committee, in force units, where
  /// the last evaluation was: [nlocal], -1 for atoms that no model describes. Collective.
  const std::vector<double> &force_deviations();

 private:
  struct Impl;
  Impl *impl;

  void check_environment();
  void check_special_bonds();
  void choose_list();
  void check_masses();
  void check_exclusions();
  bool excludes_pairs() const;
  void check_positions();
  void warn_of_stale_list(int);
  std::string restart_report() const;
  void compare_with_restart() const;
  void check_types() const;
  void allocate();
  bool topology_is_stale() const;
  void rebuild_topology();
  void hand_over_topology();
  void find_owners();
  void find_species();
  void refuse_exclusions();
  void refuse_computing();
  void find_ids();
  bool is_excluded(int) const;
  void connect_ranks();
  void find_sent_nodes();
  void settle_exchanges(bool);
  void settle_messages();
  void name_failure();
  void evaluate_others();
  void find_deviations(const std::vector<std::vector<double>> &);
  std::map<std::string, int> find_launch();
  void attempt(const std::function<void()> &);
  void stop_if_failed();
  void print_start_report();
  std::string gather_lines(const std::string &);
  std::map<std::string, double> over_ranks(const std::map<std::string, double> &, MPI_Op);
  void tally_times();
  void evaluate_model();
  void add_forces();
  void add_energies();
  void add_virials();
};

}    // namespace LAMMPS_NS

#endif
