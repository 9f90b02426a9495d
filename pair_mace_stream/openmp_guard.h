// LAMMPS and torch share one OpenMP runtime, and each sets its number of threads: a change made by
// torch inside a pair style would leave LAMMPS' threaded styles with work undone. This guard
// restores LAMMPS' number.

#ifndef MACE_STREAM_OPENMP_GUARD_H
#define MACE_STREAM_OPENMP_GUARD_H

#include <dlfcn.h>

namespace mace_stream {

class OpenMPGuard {
 public:
  OpenMPGuard()
  {
    const auto get = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
    if (get) n_threads_ = get();
  }
  ~OpenMPGuard()
  {
    const auto set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    if (set && n_threads_ > 0) set(n_threads_);
  }
  OpenMPGuard(const OpenMPGuard &) = delete;
  OpenMPGuard &operator=(const OpenMPGuard &) = delete;

 private:
  int n_threads_ = 0;
};

}    // namespace mace_stream

#endif
