#include <Python.h>

#include "python_interpreter.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace mace_stream {
namespace {

bool is_executable(const std::string &path)
{
  return access(path.c_str(), X_OK) == 0;
}

std::string python_below(const char *prefix)
{
  return prefix && *prefix ? std::string(prefix) + "/bin/python3" : "";
}

/// `<prefix>/lib/pythonX.Y/site-packages/mace_stream/...` -> `<prefix>`: where this library is
/// installed.
std::string install_prefix()
{
  Dl_info info;
  if (!dladdr(reinterpret_cast<void *>(&install_prefix), &info)) return "";
  const std::string path = info.dli_fname;
  const auto lib = path.rfind("/lib/python");
  return lib == std::string::npos ? "" : path.substr(0, lib);
}

/// The documented variable first; then the environment that holds this package, since its packages
/// match; then the active environment; then the interpreter that built the library.
std::string choose_executable()
{
  if (const char *asked = std::getenv("MACE_STREAM_PYTHON")) return asked;
  const std::string candidates[] = {
      python_below(install_prefix().c_str()), python_below(std::getenv("VIRTUAL_ENV")),
      python_below(std::getenv("CONDA_PREFIX")), MACE_STREAM_PYTHON_EXECUTABLE};
  for (const auto &candidate : candidates)
    if (!candidate.empty() && is_executable(candidate)) return candidate;
  return MACE_STREAM_PYTHON_EXECUTABLE;
}

std::string wrong_version()
{
  const std::string built =
      std::to_string(PY_MAJOR_VERSION) + "." + std::to_string(PY_MINOR_VERSION);
  const std::string running = Py_GetVersion();
  if (running.compare(0, built.size() + 1, built + ".") == 0) return "";
  return "built for Python " + built + ", this process runs Python " +
         running.substr(0, running.find(' ')) +
         "; install mace-stream with that Python, or run LAMMPS from the environment it was "
         "installed in";
}

std::string initialize(const std::string &executable)
{
  unsetenv("PYTHONHOME");    // it names the standard library of another interpreter
  PyConfig config;
  PyConfig_InitPythonConfig(&config);
  config.install_signal_handlers = 0;    // the module signal brings the one for Ctrl-C
  config.parse_argv = 0;
  config.buffered_stdio = 0;    // nothing is flushed at exit, since nothing is finalized
  PyStatus status = PyConfig_SetBytesString(&config, &config.program_name, executable.c_str());
  if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
  PyConfig_Clear(&config);
  if (PyStatus_Exception(status))
    return "cannot start Python as " + executable + " (" +
           (status.err_msg ? status.err_msg : "no reason given") +
           "); set MACE_STREAM_PYTHON to the python3 of the environment that holds mace-stream";
  PyEval_SaveThread();    // from here on, every entry takes the GIL, in any host
  return "";
}

}    // namespace

std::string python_executable()
{
  static const std::string executable = choose_executable();
  return executable;
}

std::string start_python()
{
  const std::string mismatch = wrong_version();
  if (!mismatch.empty() || Py_IsInitialized()) return mismatch;
  const std::string executable = python_executable();
  if (!is_executable(executable))
    return "no Python interpreter at " + executable +
           "; set MACE_STREAM_PYTHON to the python3 of the environment that holds mace-stream";
  return initialize(executable);
}

}    // namespace mace_stream
