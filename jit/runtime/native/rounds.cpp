// Loops and branches as operators that a graph calls: each round, and each way of a branch, is a plan. That of a round
// gives what is carried on, and whether there is another round or what is to be put together. No Python runs in
// between.
#include <ATen/ops/clone.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/Exceptions.h>
#include <torch/library.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <unordered_map>
#include <vector>

#include "plan.h"
#include "plan_object.h"

namespace jit {
namespace {

using at::Tensor;

// Name -> (what does a round, which of the loop's integers it takes). Used with the GIL held.
struct Round {
  Ref callable;
  std::vector<size_t> positions;
};
auto* table = new std::unordered_map<std::string, Round>();  // as long as the process

struct WithGil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~WithGil() { PyGILState_Release(state); }
};

bool truth(const Tensor& more) {
  TORCH_CHECK(more.is_cpu() && more.scalar_type() == at::kBool && more.numel() == 1,
              "jit: which way a program goes is one bool on the CPU");
  return *static_cast<const bool*>(more.const_data_ptr());
}

// What does the rounds of one loop.
class Rounds {
 public:
  Rounds(const std::string& name, at::IntArrayRef numbers) {
    WithGil gil;
    auto found = table->find(name);
    TORCH_CHECK(found != table->end(), "jit: the rounds of a loop are gone: ", name);
    for (size_t k : found->second.positions) ints_.push_back(numbers.at(k));
    PyObject* o = found->second.callable.get();
    if (plan_check(o) && !reinterpret_cast<PlanObject*>(o)->bound) program_ = reinterpret_cast<PlanObject*>(o)->program;
    else callable_ = Py_NewRef(o);
  }

  ~Rounds() {
    if (!callable_) return;
    WithGil gil;
    Py_DECREF(callable_);
  }
  Rounds(const Rounds&) = delete;
  Rounds& operator=(const Rounds&) = delete;

  void operator()(const std::vector<Tensor>& given, std::vector<Tensor>& results) {
    if (callable_) {
      call(given, results);
    } else {
      const Program& p = *program_;
      TORCH_CHECK((size_t)p.n_inputs == given.size() && (size_t)p.n_ints == ints_.size(),
                  "jit: a plan that is not that of this loop");
      results.resize(p.outputs.size());
      Run run(p);
      for (size_t i = 0; i < given.size(); ++i) run.set_input((int)i, given[i]);
      run.evaluate_regs(ints_.data());
      execute(p, run, /*gil_held=*/false, p.outputs.size(), [&] {
        for (size_t k = 0; k < results.size(); ++k) results[k] = run.plain_result(p.outputs[k]);
      });
    }
    look_for_signals();
  }

 private:
  void call(const std::vector<Tensor>& given, std::vector<Tensor>& results) {
    WithGil gil;
    Ref args = Ref::steal(PyTuple_New((Py_ssize_t)(given.size() + ints_.size())));
    if (!args) throw python_error();
    Py_ssize_t at = 0;
    for (const Tensor& t : given) PyTuple_SET_ITEM(args.get(), at++, THPVariable_Wrap(t));
    for (int64_t n : ints_) PyTuple_SET_ITEM(args.get(), at++, PyLong_FromLongLong(n));
    Ref found = Ref::steal(PyObject_CallObject(callable_, args.get()));
    if (!found) throw python_error();
    TORCH_CHECK(PyTuple_Check(found.get()), "jit: a round of a loop gives a tuple");
    results.clear();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(found.get()); ++i) {
      PyObject* o = PyTuple_GET_ITEM(found.get(), i);
      TORCH_CHECK(THPVariable_Check(o), "jit: a round of a loop gives tensors");
      results.push_back(THPVariable_Unpack(o));
    }
  }

  // A program that waits for its loop can be interrupted, by another of its threads too, and lets them run.
  void look_for_signals() {
    auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(50)) return;
    last_ = now;
    WithGil gil;
    Py_BEGIN_ALLOW_THREADS;
    Py_END_ALLOW_THREADS;
    if (PyErr_CheckSignals() != 0) throw python_error();
  }

  std::shared_ptr<const Program> program_;  // or
  PyObject* callable_ = nullptr;
  std::vector<int64_t> ints_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Results are memory of their own: neither that of what was given nor each other's.
std::vector<Tensor> owned(const std::vector<Tensor>& found, size_t n, at::TensorList carried, at::TensorList xs,
                          at::TensorList others) {
  std::vector<Tensor> results;
  for (size_t k = 0; k < n; ++k) {
    auto shares = [&](const Tensor& t) { return t.has_storage() && t.storage().is_alias_of(found[k].storage()); };
    auto any = [&](const auto& of) { return std::any_of(of.begin(), of.end(), shares); };
    results.push_back(any(carried) || any(xs) || any(others) || any(results) ? at::clone(found[k]) : found[k]);
  }
  return results;
}

std::vector<Tensor> run_loop(std::string name, bool own, const Tensor& more, at::TensorList carried,
                             at::TensorList others, at::IntArrayRef numbers) {
  const size_t n = carried.size();
  std::vector<Tensor> given(carried.begin(), carried.end()), next;
  given.insert(given.end(), others.begin(), others.end());
  if (truth(more)) {
    Rounds round(name, numbers);
    do {
      round(given, next);
      TORCH_CHECK(next.size() == n + 1, "jit: a round of a loop gives what is carried, and whether there is another");
      for (size_t k = 0; k < n; ++k) std::swap(given[k], next[k]);
    } while (truth(next[n]));
  }
  given.resize(n);
  return own ? owned(given, n, carried, {}, others) : given;
}

// The results of the way that is taken, which may be tensors that were given.
std::vector<Tensor> run_branch(std::string yes, std::string no, const Tensor& holds, at::TensorList others,
                               at::IntArrayRef numbers) {
  std::vector<Tensor> given(others.begin(), others.end()), results;
  Rounds way(truth(holds) ? yes : no, numbers);
  way(given, results);
  return results;
}

std::vector<Tensor> run_scan(std::string name, bool reverse, at::TensorList carried, at::TensorList xs,
                             at::TensorList others, at::IntArrayRef numbers) {
  const size_t n = carried.size();
  const int64_t steps = xs.at(0).size(0);
  std::vector<Tensor> given(carried.begin(), carried.end()), next;
  given.insert(given.end(), xs.begin(), xs.end());
  given.insert(given.end(), others.begin(), others.end());
  std::vector<std::vector<Tensor>> made;
  {
    Rounds round(name, numbers);
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t at = reverse ? steps - 1 - step : step;
      for (size_t k = 0; k < xs.size(); ++k) given[n + k] = xs[k].select(0, at);
      round(given, next);
      TORCH_CHECK(next.size() >= n, "jit: a round of a scan gives what is carried, and a part of its results");
      if (!step) made.resize(next.size() - n, std::vector<Tensor>((size_t)steps));
      for (size_t k = 0; k < n; ++k) std::swap(given[k], next[k]);
      for (size_t k = n; k < next.size(); ++k) made[k - n][(size_t)at] = std::move(next[k]);
    }
  }
  std::vector<Tensor> results = owned(given, n, carried, xs, others);
  for (std::vector<Tensor>& parts : made) results.push_back(at::stack(parts));
  return results;
}

PyObject* py_define_round(PyObject*, PyObject* args) {
  const char* name;
  PyObject *callable, *positions;
  if (!PyArg_ParseTuple(args, "sOO:define_round", &name, &callable, &positions)) return nullptr;
  Items items(positions, "the integers of a round");
  Round round{Ref::share(callable), {}};
  for (Py_ssize_t i = 0; i < items.size; ++i) round.positions.push_back((size_t)as_int(items[i], "a position"));
  std::swap((*table)[name], round);
  return Py_NewRef(Py_None);
}

PyMethodDef methods[] = {
    {"define_round", Entry<py_define_round>::call, METH_VARARGS,
     "define_round(name, callable, positions): what jit::run_loop and jit::run_scan call in each round, or "
     "jit::run_branch for one of its ways, a plan or a function: with what is carried, in a scan the parts of this "
     "step, the other tensors, and those of the integers. It returns what is carried on, and whether there is another "
     "round, or the step's results; of a way its results."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(jit, m) {
  m.def("run_loop(str round, bool own, Tensor more, Tensor[] carried, Tensor[] others, int[] numbers) -> Tensor[]");
  m.def("run_branch(str yes, str no, Tensor holds, Tensor[] others, int[] numbers) -> Tensor[]");
  m.def("run_scan(str round, bool reverse, Tensor[] carried, Tensor[] xs, Tensor[] others, int[] numbers) -> Tensor[]");
  m.impl("run_loop", c10::DispatchKey::CompositeExplicitAutograd, run_loop);
  m.impl("run_branch", c10::DispatchKey::CompositeExplicitAutograd, run_branch);
  m.impl("run_scan", c10::DispatchKey::CompositeExplicitAutograd, run_scan);
}

bool init_rounds(PyObject* module) { return PyModule_AddFunctions(module, methods) == 0; }

}  // namespace jit
