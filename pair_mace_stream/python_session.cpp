#include "python_session.h"

#include "openmp_guard.h"
#include "python_interpreter.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>

namespace py = pybind11;

namespace mace_stream {
namespace {

/// The interpreter could not import the package: say which interpreter looked where.
std::runtime_error import_failure(const std::string &reason)
{
  const auto sys = py::module_::import("sys");
  std::string searched;
  for (const auto &entry : sys.attr("path"))
    searched += "\n  " + py::str(entry).cast<std::string>();
  return std::runtime_error(
      reason + "\nPython interpreter: " + py::str(sys.attr("executable")).cast<std::string>() +
      "\nsearched:" + searched +
      "\nSet MACE_STREAM_PYTHON to the python3 of the environment that holds mace-stream, "
      "or check the installation with: mace-stream doctor");
}

/// Text for a Python exception. Only Python knows which exceptions speak for themselves.
std::runtime_error translated(const py::error_already_set &error)
{
  try {
    const auto describe = py::module_::import("mace_stream.bridge").attr("describe_error");
    return std::runtime_error(describe(error.value()).cast<std::string>());
  } catch (const py::error_already_set &) {
    return import_failure(error.what());
  }
}

/// Runs `body` with the GIL held and LAMMPS' OpenMP setting restored afterwards. No Python object
/// and no Python exception leaves it.
template <typename Body> auto in_python(Body body) -> decltype(body())
{
  const OpenMPGuard threads;
  const py::gil_scoped_acquire gil;
  try {
    return body();
  } catch (const py::error_already_set &error) {
    throw translated(error);
  } catch (const py::cast_error &error) {
    throw std::runtime_error(std::string("the bridge returned an unexpected type: ") +
                             error.what());
  }
}

/// A view, not a copy: it must not outlive the call that it is made for.
template <typename T> py::array_t<T> view(const T *data, std::vector<py::ssize_t> shape)
{
  static T nothing{};
  return py::array_t<T>(std::move(shape), data ? data : &nothing,
                        py::capsule(data ? data : &nothing, [](void *) {}));
}

template <typename T> py::array_t<T> view(const std::vector<T> &values)
{
  return view(values.data(), {static_cast<py::ssize_t>(values.size())});
}

void copy_checked(const py::object &source, double *target, std::size_t count, const char *name)
{
  using Array = py::array_t<double, py::array::c_style>;
  if (!py::isinstance<Array>(source))
    throw std::runtime_error(std::string(name) + ": expected a C-contiguous float64 array");
  const auto array = py::reinterpret_borrow<Array>(source);
  if (static_cast<std::size_t>(array.size()) != count)
    throw std::runtime_error(std::string(name) + ": expected " + std::to_string(count) +
                             " values, got " + std::to_string(array.size()));
  std::copy(array.data(), array.data() + count, target);
}

void copy_checked(const py::object &source, std::vector<double> &target, std::size_t count,
                  const char *name)
{
  target.resize(count);
  copy_checked(source, target.data(), count, name);
}

/// What waits for other ranks lets go of the GIL. What it throws is complete as it is.
template <typename Body> void without_gil(Body body)
{
  try {
    const py::gil_scoped_release release;
    body();
  } catch (const std::exception &error) {
    throw py::value_error(error.what());
  }
}

class PythonSession : public ModelSession {
 public:
  PythonSession(const std::vector<std::string> &paths, const std::vector<std::string> &symbols,
                const Options &options, const Launch &launch)
  {
    in_python([&] {
      const auto open = py::module_::import("mace_stream.bridge").attr("open_session");
      session_ = open(paths, symbols, options, launch);
      n_models_ = session_.attr("n_models").cast<int>();
      r_max_ = session_.attr("r_max").cast<double>();
      finds_pairs_ = session_.attr("finds_pairs").cast<bool>();
      type_species_ = session_.attr("type_species").cast<std::vector<int>>();
      type_masses_ = session_.attr("type_masses").cast<std::vector<double>>();
      type_species_.insert(type_species_.begin(), -1);
      type_masses_.insert(type_masses_.begin(), 0.0);
    });
  }

  ~PythonSession() override
  {
    const py::gil_scoped_acquire gil;
    session_.release().dec_ref();
  }

  int n_models() const override { return n_models_; }
  double r_max() const override { return r_max_; }
  const std::vector<int> &type_species() const override { return type_species_; }
  const std::vector<double> &type_masses() const override { return type_masses_; }

  void set_exchange(FeatureExchange &exchange) override
  {
    const auto start = [&exchange](std::uintptr_t out, std::uintptr_t in, std::int64_t row_bytes,
                                   bool home) {
      without_gil([&] {
        exchange.start(reinterpret_cast<void *>(out), reinterpret_cast<void *>(in), row_bytes,
                       home);
      });
    };
    const auto finish = [&exchange] { without_gil([&] { exchange.finish(); }); };
    const auto compares = [&exchange] { return exchange.compares(); };
    in_python([&] {
      const py::object halo =
          py::module_::import("mace_stream.halo")
              .attr("Halo")(view(exchange.sent), view(exchange.peer_counts), exchange.n_received,
                            py::cpp_function(start), py::cpp_function(finish),
                            py::cpp_function(compares));
      session_.attr("set_halo")(halo);
    });
  }

  std::vector<bool> exchanges() override
  {
    return in_python([&] { return session_.attr("exchanges").cast<std::vector<bool>>(); });
  }

  std::vector<bool> other_exchanges() override
  {
    return in_python([&] { return session_.attr("other_exchanges").cast<std::vector<bool>>(); });
  }

  Facts record() override
  {
    return in_python([&] { return session_.attr("record").cast<Facts>(); });
  }

  void set_topology(const EdgeGraph &graph) override
  {
    count_nodes(graph);
    in_python([&] {
      session_.attr("set_topology")(view(graph.indptr), view(graph.sender),
                                    view(graph.receiver_atom), view(graph.sender_atom),
                                    view(graph.species));
    });
  }

  void set_ids(const std::vector<std::int64_t> &ids, const std::vector<std::int64_t> &rows) override
  {
    in_python([&] { session_.attr("set_ids")(view(ids), view(rows)); });
  }

  bool finds_pairs() const override { return finds_pairs_; }

  void set_atoms(const EdgeGraph &nodes, const std::vector<std::int64_t> &node, int n_local,
                 double cutoff) override
  {
    count_nodes(nodes);
    in_python(
        [&] { session_.attr("set_atoms")(n_local, view(node), view(nodes.species), cutoff); });
  }

  Evaluation &evaluate(const double *positions, int n_atoms, Wanted wanted) override
  {
    in_python([&] {
      const py::object out = session_.attr("evaluate")(view(positions, {n_atoms, 3}),
                                                       wanted.node_energy, wanted.node_virial);
      result_.energy = out.attr("energy").cast<double>();
      copy_checked(out.attr("virial"), result_.virial, 9, "virial");
      copy_checked(out.attr("forces"), result_.forces, 3 * n_senders_, "forces");
      if (wanted.node_energy)
        copy_checked(out.attr("node_energy"), result_.node_energy, n_nodes_, "node_energy");
      if (!wanted.node_virial) return;
      copy_checked(out.attr("receiver_virial"), result_.receiver_virial, 9 * n_nodes_,
                   "receiver_virial");
      copy_checked(out.attr("sender_virial"), result_.sender_virial, 9 * n_senders_,
                   "sender_virial");
    });
    return result_;
  }

  std::vector<std::vector<double>> &all_forces() override
  {
    all_forces_.resize(n_models_);
    in_python([&] {
      const py::list forces = session_.attr("all_forces")();
      for (int model = 0; model < n_models_; model++)
        copy_checked(forces[model], all_forces_[model], 3 * n_senders_, "forces");
    });
    return all_forces_;
  }

  std::int64_t take_list(const double *positions, int n_atoms) override
  {
    return in_python([&] {
      return session_.attr("take_list")(view(positions, {n_atoms, 3})).cast<std::int64_t>();
    });
  }

  std::string verify(const double *positions, int n_atoms) override
  {
    return in_python(
        [&] { return session_.attr("verify")(view(positions, {n_atoms, 3})).cast<std::string>(); });
  }

  std::string placement() override
  {
    return in_python([&] { return session_.attr("placement").cast<std::string>(); });
  }

  Timings take_statistics() override
  {
    return in_python([&] { return session_.attr("take_statistics")().cast<Timings>(); });
  }

  std::string start_report(const Facts &facts) override
  {
    return in_python([&] { return session_.attr("start_report")(facts).cast<std::string>(); });
  }

  std::string end_report(const Timings &sum, const Timings &most, int n_ranks) override
  {
    return in_python(
        [&] { return session_.attr("end_report")(sum, most, n_ranks).cast<std::string>(); });
  }

 private:
  py::object session_;
  int n_models_ = 1;
  double r_max_ = 0.0;
  bool finds_pairs_ = false;
  std::vector<int> type_species_;
  std::vector<double> type_masses_;
  std::size_t n_nodes_ = 0, n_senders_ = 0;
  Evaluation result_;
  std::vector<std::vector<double>> all_forces_;

  void count_nodes(const EdgeGraph &graph)
  {
    n_nodes_ = graph.n_nodes();
    n_senders_ = graph.n_senders();
  }
};

}    // namespace

Options check_options(const std::vector<std::string> &words)
{
  return in_python([&] {
    const auto bridge = py::module_::import("mace_stream.bridge");
    bridge.attr("check_build")(MACE_STREAM_VERSION);
    return bridge.attr("check_options")(words).cast<Options>();
  });
}

std::unique_ptr<ModelSession> open_session(const std::vector<std::string> &paths,
                                           const std::vector<std::string> &symbols,
                                           const Options &options, const Launch &launch)
{
  return std::make_unique<PythonSession>(paths, symbols, options, launch);
}

}    // namespace mace_stream
