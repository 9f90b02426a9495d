// Wall time summed over the scopes that ask for it.

#ifndef MACE_STREAM_STOPWATCH_H
#define MACE_STREAM_STOPWATCH_H

#include <chrono>

namespace mace_stream {

class Stopwatch {
 public:
  /// Adds the time from its construction to its destruction.
  class Lap {
   public:
    explicit Lap(Stopwatch &watch) : watch_(watch), start_(Clock::now()) {}
    ~Lap() { watch_.seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
    Lap(const Lap &) = delete;
    Lap &operator=(const Lap &) = delete;

   private:
    using Clock = std::chrono::steady_clock;
    Stopwatch &watch_;
    Clock::time_point start_;
  };

  double seconds() const { return seconds_; }

  /// Returns the sum in seconds and starts again from zero.
  double take()
  {
    const double sum = seconds_;
    seconds_ = 0.0;
    return sum;
  }

 private:
  double seconds_ = 0.0;
};

}    // namespace mace_stream

#endif
