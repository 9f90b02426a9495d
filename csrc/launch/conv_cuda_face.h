// The CUDA side of the C face: the same calls with exceptions turned into text.

#ifndef MACE_STREAM_CONV_CUDA_FACE_H
#define MACE_STREAM_CONV_CUDA_FACE_H

#include <stdexcept>
#include <string>

#include "conv_cuda.h"

namespace mace_stream {

/// Runs `body`; returns null, or the text of what it threw, valid until the thread's next call.
template <typename Body>
const char* message_of(const Body& body) {
  static thread_local std::string message;
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}

}  // namespace mace_stream

#endif
