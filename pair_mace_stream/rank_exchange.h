// Rows of node arrays between ranks. Knows MPI, neither LAMMPS nor Python.

#ifndef MACE_STREAM_RANK_EXCHANGE_H
#define MACE_STREAM_RANK_EXCHANGE_H

#include "model_session.h"
#include "stopwatch.h"

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

namespace mace_stream {

/// An atom that another rank owns, by its index there.
struct RemoteAtom {
  int rank;
  int atom;
  bool operator<(const RemoteAtom &other) const
  {
    return rank < other.rank || (rank == other.rank && atom < other.atom);
  }
  bool operator==(const RemoteAtom &other) const
  {
    return rank == other.rank && atom == other.atom;
  }
};

/// What MPI says about addresses of CUDA memory: 1 it takes them, 0 it does not, -1 it cannot tell.
int mpi_takes_gpu_memory();

/// One message to and one from each rank that shares atoms with this one, straight from and into
/// the caller's memory. A rank that fails in an evaluation sends empty messages in place of those
/// it still owes, so that nobody waits for it.
class RankExchange : public FeatureExchange {
 public:
  /// Collective. `watch` gets the time that messages take.
  RankExchange(MPI_Comm world, Stopwatch &watch);
  ~RankExchange() override;
  RankExchange(const RankExchange &) = delete;
  RankExchange &operator=(const RankExchange &) = delete;

  /// Collective, once for each new list. `wanted` is sorted, without repeats.
  void connect(const std::vector<RemoteAtom> &wanted);
  /// Local atoms that other ranks want, in the order of `sent`: [n_sent]
  const std::vector<int> &requested() const { return requested_; }

  /// Which way each exchange of the next evaluations goes, true for home; returns what held before.
  std::vector<bool> expect(std::vector<bool> directions)
  {
    directions_.swap(directions);
    return directions;
  }
  /// Whether exchanges are made twice and compared, until an evaluation has ended well, where some
  /// rank has peers that it has not met since this call. The same call on all ranks.
  void compare_ways(bool wanted);
  bool compares() const override { return compares_; }

  /// Before an evaluation.
  void begin() { n_started_ = 0; }
  /// After one that ended well on all ranks; where nothing travelled, nothing was compared.
  void succeed() { compares_ = compares_ && directions_.empty(); }
  /// After one that failed: sends and receives what is still owed. Never throws.
  void abandon();
  int n_started() const { return n_started_; }
  int n_expected() const { return repeats() * static_cast<int>(directions_.size()); }

  void start(const void *out, void *in, std::int64_t row_bytes, bool home) override;
  void finish() override;

  /// Adds rows of remote nodes, which follow the own ones, to the rows of their owners:
  /// `rows` [n_nodes + n_received, width].
  void add_home(double *rows, std::size_t n_nodes, int width);

 private:
  struct Peer {
    int rank;
    int n_out, first_out;    // rows it reads
    int n_in, first_in;      // rows of its own that we read
    int rows_to(bool home) const { return home ? n_in : n_out; }
    int rows_from(bool home) const { return home ? n_out : n_in; }
  };

  MPI_Comm comm_ = MPI_COMM_NULL;
  Stopwatch &watch_;
  std::vector<Peer> peers_;
  std::vector<int> requested_;
  std::vector<bool> directions_;
  int n_started_ = 0;
  bool wants_comparison_ = false, compares_ = false;
  std::set<int> met_;                            // ranks that were peers since `compare_ways`
  std::vector<MPI_Request> receives_, sends_;    // in flight
  std::vector<double> out_, in_;                 // of add_home

  int repeats() const { return compares_ ? 2 : 1; }
  bool next_direction() const { return directions_[n_started_ / repeats()]; }
  void look_for_new_peers();
  void post(const void *out, void *in, std::int64_t row_bytes, bool home);
  void wait(bool home);
  void send_nothing(bool home);
  bool in_flight_ = false, in_flight_home_ = false;
};

}    // namespace mace_stream

#endif
