// Checks of what comes in through the C face.

#pragma once

#include <cstdint>
#include <initializer_list>

#include "mace_stream/conv.h"

namespace mace_stream {

/// An array of a call: null is an error, unless nothing is in it.
struct Argument {
  const char* name;
  const void* data;
  int64_t size;
};

/// Each returns null, or a message that lives until the thread's next one.
const char* check_sizes(const ms_conv_plan* plan, const ms_graph* graph);
const char* check_arguments(std::initializer_list<Argument> arguments);

/// For graphs whose arrays the CPU can read: row pointers that grow from 0 to n_edges, nodes that
/// exist.
const char* check_graph(const ms_graph& graph);

/// Likewise for the arrays of the sender-owned pass.
const char* check_sender_rows(const ms_graph& graph);

}  // namespace mace_stream
