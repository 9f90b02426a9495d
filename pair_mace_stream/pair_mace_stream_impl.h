/* -*- c++ -*- ----------------------------------------------------------
   What a pair style mace/stream keeps between calls.
   Part of mace-stream. This file derives from LAMMPS headers and is
   distributed under the GNU General Public License, version 2 or later.
------------------------------------------------------------------------- */

#ifndef LMP_PAIR_MACE_STREAM_IMPL_H
#define LMP_PAIR_MACE_STREAM_IMPL_H

#include "pair_mace_stream.h"

#include "python_session.h"
#include "rank_exchange.h"
#include "stopwatch.h"

namespace LAMMPS_NS {

static constexpr int HOME_WIDTH = 2;       // numbers per atom that tell its owner
static constexpr double FARTHEST = 1e8;    // Å from the origin; doubles are 1e-8 Å apart there
static constexpr int N_TIMES = 3;          // what compute pair can show

struct PairMACEStream::Impl {
  // seconds since the start of the run

  mace_stream::Stopwatch flatten, model, scatter;
  mace_stream::Stopwatch messages, settling;    // parts of model: during and after the evaluation
  bigint evaluations = 0, rebuilds = 0;
  struct {
    double model = 0.0, exchanging = 0.0;
    bigint evaluations = 0;
  } tallied;    // at the last step with an energy

  mace_stream::Options options;
  std::string words;    // the keywords as given
  std::string model_path;
  std::unique_ptr<mace_stream::RankExchange> exchange;    // null on one rank
  std::unique_ptr<mace_stream::ModelSession> session;
  double r_max = 0.0;
  double energy_scale = 1.0;    // eV -> energy unit of this run
  mace_stream::ListKind list_kind = mace_stream::ListKind::FULL;
  bool device_list = false;    // the model finds its pairs by itself

  mace_stream::EdgeGraph graph;
  mace_stream::Evaluation *result = nullptr;

  // committee: how far the models differ, and in which evaluation they did

  std::vector<double> deviations;    // [n_evaluated]
  bigint evaluation = 0, deviations_of = -1;
  int n_evaluated = 0;    // nlocal at that time

  // what the graph was built from, to notice when it no longer holds

  std::vector<int> types;            // [nlocal + nghost]
  std::vector<int> owner;            // [nlocal + nghost]
  std::vector<int> species;          // [nlocal + nghost]
  std::vector<std::int64_t> ids;     // [n_senders]  of the nodes' atoms
  std::vector<std::int64_t> rows;    // [n_senders]  of the positions
  bigint list_builds = -1;           // neighbor->ncalls at that time

  // several ranks

  std::vector<double> home;                       // [nlocal + nghost, 2]  owning rank, index there
  std::vector<mace_stream::RemoteAtom> remote;    // distinct atoms of other ranks among the ghosts
  std::string failure;                            // of this rank, not yet told
  int failed_at = 0;                              // exchanges that came before it

  // what decides the numbers, now and where the restart file came from

  mace_stream::Facts record;
  mace_stream::Facts restarted;    // empty without a restart file
  bool continues = false;          // pair_style has not been given since read_restart

  bool set_up = false;             // lists and cutoffs are those of the session
  std::vector<double> listed_x;    // [nlocal, 3]  when the list was made
  bool told_stale = false;         // in this run
  bool reported = false;
};

}    // namespace LAMMPS_NS

#endif
