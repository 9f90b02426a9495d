#include "check.h"

#include <cstdarg>
#include <cstdio>

namespace mace_stream {
namespace {

__attribute__((format(printf, 1, 2))) const char* message(const char* format, ...) {
  static thread_local char text[256];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof(text), format, values);
  va_end(values);
  return text;
}

const char* check_rows(const char* name, const int64_t* indptr, int64_t n_rows, int64_t n_edges) {
  if (indptr[0] != 0)
    return message("graph.%s: expected it to start with 0, got %lld", name, (long long)indptr[0]);
  for (int64_t row = 0; row < n_rows; ++row)
    if (indptr[row + 1] < indptr[row])
      return message("graph.%s: expected rows of 0 or more edges, got %lld in row %lld", name,
                     (long long)(indptr[row + 1] - indptr[row]), (long long)row);
  if (indptr[n_rows] != n_edges)
    return message("graph.%s: expected it to end with n_edges = %lld, got %lld", name,
                   (long long)n_edges, (long long)indptr[n_rows]);
  return nullptr;
}

template <typename Index>
const char* check_range(const char* name, const Index* indices, int64_t size, int64_t stop) {
  for (int64_t i = 0; i < size; ++i)
    if (indices[i] < 0 || indices[i] >= stop)
      return message("graph.%s[%lld]: expected at least 0 and less than %lld, got %lld", name,
                     (long long)i, (long long)stop, (long long)indices[i]);
  return nullptr;
}

}  // namespace

const char* check_sizes(const ms_conv_plan* plan, const ms_graph* graph) {
  if (!plan) return "plan: expected what ms_conv_create returned, got null";
  if (!graph) return "graph: expected a graph, got null";
  const struct {
    const char* name;
    int64_t value, least;
  } sizes[] = {{"n_nodes", graph->n_nodes, 0},
               {"n_receivers", graph->n_receivers, 0},
               {"n_edges", graph->n_edges, 0},
               {"channels", graph->channels, 1}};
  for (const auto& size : sizes)
    if (size.value < size.least)
      return message("graph.%s: expected %lld or more, got %lld", size.name, (long long)size.least,
                     (long long)size.value);
  if (graph->n_receivers > 0 && !graph->indptr && !graph->receiver && graph->n_edges > 0)
    return "graph: expected indptr or receiver, got neither";
  if (graph->n_edges > 0 && !graph->sender) return "graph.sender: expected an array, got null";
  return nullptr;
}

const char* check_arguments(std::initializer_list<Argument> arguments) {
  for (const Argument& argument : arguments)
    if (!argument.data && argument.size > 0)
      return message("%s: expected an array of %lld numbers, got null", argument.name,
                     (long long)argument.size);
  return nullptr;
}

const char* check_graph(const ms_graph& graph) {
  const char* error = nullptr;
  if (graph.indptr) error = check_rows("indptr", graph.indptr, graph.n_receivers, graph.n_edges);
  if (!error && graph.receiver)
    error = check_range("receiver", graph.receiver, graph.n_edges, graph.n_receivers);
  if (!error && graph.n_edges > 0 && graph.n_receivers == 0)
    error =
        message("graph.n_edges: expected 0 without receivers, got %lld", (long long)graph.n_edges);
  return error ? error : check_range("sender", graph.sender, graph.n_edges, graph.n_nodes);
}

const char* check_sender_rows(const ms_graph& graph) {
  if (graph.n_edges == 0) return nullptr;
  if (!graph.sender_indptr || !graph.edge_of)
    return "graph.sender_indptr, graph.edge_of: expected the edges sorted by sender, got null; "
           "gradients of node features on the CPU are summed sender by sender";
  const char* error =
      check_rows("sender_indptr", graph.sender_indptr, graph.n_nodes, graph.n_edges);
  return error ? error : check_range("edge_of", graph.edge_of, graph.n_edges, graph.n_edges);
}

}  // namespace mace_stream
