// The only door to Python: a ModelSession whose model is a mace_stream.bridge.Session.

#ifndef MACE_STREAM_PYTHON_SESSION_H
#define MACE_STREAM_PYTHON_SESSION_H

#include "model_session.h"

namespace mace_stream {

using Options = std::map<std::string, std::string>;
/// Numbers that say where this rank stands; see mace_stream.bridge.launch.
using Launch = std::map<std::string, int>;

/// Checks the style's keywords and fills in what was left out.
/// Throws std::runtime_error that names a wrong keyword or value and what is accepted.
Options check_options(const std::vector<std::string> &words);

/// Opens a model file, or the files of a committee, for atom types named by element symbol, "NULL"
/// where the model does not serve a type.
std::unique_ptr<ModelSession> open_session(const std::vector<std::string> &paths,
                                           const std::vector<std::string> &symbols,
                                           const Options &options, const Launch &launch);

}    // namespace mace_stream

#endif
