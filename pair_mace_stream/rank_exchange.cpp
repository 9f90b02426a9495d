#include "rank_exchange.h"

#include <algorithm>
#include <stdexcept>
#include <string>

/// An extension of MPICH and Open MPI, absent in others.
extern "C" __attribute__((weak)) int MPIX_Query_cuda_support(void);

namespace mace_stream {
namespace {

constexpr int TAG = 1;

/// A row as a type of MPI: counts of rows fit an int where counts of bytes do not.
class RowType {
 public:
  explicit RowType(std::int64_t bytes)
  {
    MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &type_);
    MPI_Type_commit(&type_);
  }
  ~RowType() { MPI_Type_free(&type_); }
  RowType(const RowType &) = delete;
  RowType &operator=(const RowType &) = delete;
  operator MPI_Datatype() const { return type_; }

 private:
  MPI_Datatype type_;
};

char *at_row(void *rows, int row, std::int64_t row_bytes)
{
  return static_cast<char *>(rows) + row * row_bytes;
}

const char *at_row(const void *rows, int row, std::int64_t row_bytes)
{
  return static_cast<const char *>(rows) + row * row_bytes;
}

}    // namespace

int mpi_takes_gpu_memory()
{
  if (!MPIX_Query_cuda_support) return -1;
  return MPIX_Query_cuda_support() ? 1 : 0;
}

RankExchange::RankExchange(MPI_Comm world, Stopwatch &watch) : watch_(watch)
{
  MPI_Comm_dup(world, &comm_);    // messages of LAMMPS and ours never meet
}

RankExchange::~RankExchange()
{
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized) MPI_Comm_free(&comm_);
}

void RankExchange::connect(const std::vector<RemoteAtom> &wanted)
{
  int n_ranks = 0;
  MPI_Comm_size(comm_, &n_ranks);
  std::vector<int> n_in(n_ranks), n_out(n_ranks), atoms;
  for (const RemoteAtom &remote : wanted) {
    n_in[remote.rank]++;
    atoms.push_back(remote.atom);
  }
  MPI_Alltoall(n_in.data(), 1, MPI_INT, n_out.data(), 1, MPI_INT, comm_);

  peers_.clear();
  int first_out = 0, first_in = 0;
  for (int rank = 0; rank < n_ranks; rank++) {
    if (!n_in[rank] && !n_out[rank]) continue;
    peers_.push_back({rank, n_out[rank], first_out, n_in[rank], first_in});
    first_out += n_out[rank];
    first_in += n_in[rank];
  }
  n_received = first_in;
  peer_counts.clear();
  for (const Peer &peer : peers_) peer_counts.push_back(peer.n_out);
  if (wants_comparison_) look_for_new_peers();

  // Tell every owner which of its atoms are wanted: the way home.

  requested_.resize(first_out);
  post(atoms.data(), requested_.data(), sizeof(int), true);
  wait(true);
}

void RankExchange::compare_ways(bool wanted)
{
  wants_comparison_ = wanted;
  compares_ = false;
  met_.clear();
}

void RankExchange::look_for_new_peers()
{
  int is_any_new = 0;
  for (const Peer &peer : peers_) is_any_new |= met_.insert(peer.rank).second;
  MPI_Allreduce(MPI_IN_PLACE, &is_any_new, 1, MPI_INT, MPI_LOR, comm_);
  compares_ |= is_any_new != 0;
}

void RankExchange::start(const void *out, void *in, std::int64_t row_bytes, bool home)
{
  if (n_started_ == n_expected() || next_direction() != home)
    throw std::runtime_error("exchange " + std::to_string(n_started_ + 1) + " of " +
                             std::to_string(n_expected()) + " was not expected");
  const Stopwatch::Lap lap(watch_);
  n_started_++;
  in_flight_ = true;
  in_flight_home_ = home;
  post(out, in, row_bytes, home);
}

void RankExchange::finish()
{
  const Stopwatch::Lap lap(watch_);
  in_flight_ = false;
  wait(in_flight_home_);
}

void RankExchange::post(const void *out, void *in, std::int64_t row_bytes, bool home)
{
  const RowType row(row_bytes);
  receives_.assign(peers_.size(), MPI_REQUEST_NULL);
  sends_.assign(peers_.size(), MPI_REQUEST_NULL);
  for (std::size_t k = 0; k < peers_.size(); k++) {
    const Peer &peer = peers_[k];
    const int first = home ? peer.first_out : peer.first_in;
    if (const int n = peer.rows_from(home))
      MPI_Irecv(at_row(in, first, row_bytes), n, row, peer.rank, TAG, comm_, &receives_[k]);
  }
  for (std::size_t k = 0; k < peers_.size(); k++) {
    const Peer &peer = peers_[k];
    const int first = home ? peer.first_in : peer.first_out;
    if (const int n = peer.rows_to(home))
      MPI_Isend(at_row(out, first, row_bytes), n, row, peer.rank, TAG, comm_, &sends_[k]);
  }
}

void RankExchange::wait(bool home)
{
  const int n = static_cast<int>(peers_.size());
  std::vector<MPI_Status> statuses(peers_.size());
  MPI_Waitall(n, receives_.data(), statuses.data());
  MPI_Waitall(n, sends_.data(), MPI_STATUSES_IGNORE);
  for (std::size_t k = 0; k < peers_.size(); k++) {
    int bytes = 0;
    if (peers_[k].rows_from(home) == 0) continue;
    MPI_Get_count(&statuses[k], MPI_BYTE, &bytes);
    if (bytes == 0)
      throw std::runtime_error("rank " + std::to_string(peers_[k].rank) + " failed in this step");
  }
}

void RankExchange::abandon()
{
  if (in_flight_) {
    try {
      finish();
    } catch (const std::exception &) {    // another rank failed, too
    }
  }
  for (; n_started_ < n_expected(); n_started_++) send_nothing(next_direction());
}

void RankExchange::send_nothing(bool home)
{
  for (const Peer &peer : peers_)
    if (peer.rows_to(home)) MPI_Send(nullptr, 0, MPI_BYTE, peer.rank, TAG, comm_);
  std::vector<char> scrap;
  for (const Peer &peer : peers_) {
    const int n = peer.rows_from(home);
    if (n == 0) continue;
    MPI_Message message;
    MPI_Status status;
    MPI_Mprobe(peer.rank, TAG, comm_, &message, &status);
    MPI_Count bytes = 0;
    MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
    scrap.resize(bytes);
    MPI_Mrecv(scrap.data(), n, RowType(bytes / n), &message, MPI_STATUS_IGNORE);
  }
}

void RankExchange::add_home(double *rows, std::size_t n_nodes, int width)
{
  const std::int64_t row_bytes = width * sizeof(double);
  in_.resize(sent.size() * width);
  post(rows + n_nodes * width, in_.data(), row_bytes, true);
  wait(true);
  for (std::size_t k = 0; k < sent.size(); k++)
    for (int c = 0; c < width; c++) rows[std::size_t(sent[k]) * width + c] += in_[k * width + c];
}

}    // namespace mace_stream
