// One Python interpreter per process: the host's if there is one, else one started here and never
// finalized.

#ifndef MACE_STREAM_PYTHON_INTERPRETER_H
#define MACE_STREAM_PYTHON_INTERPRETER_H

#include <string>

namespace mace_stream {

/// Starts Python if none runs, and leaves the GIL released. Returns what went wrong, or an empty
/// text.
std::string start_python();

/// Path of the interpreter whose packages are used.
std::string python_executable();

}    // namespace mace_stream

#endif
