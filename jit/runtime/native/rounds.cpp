// Loops whose number of rounds data decide, as an operator that a graph calls: each round is a plan, which gives what is
// carried on and whether there is another round. No Python runs in between.
#include <ATen/ops/clone.h>
#include <torch/csrc/Exceptions.h>
#include <torch/library.h>

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
              "jit: whether a loop goes on is one bool on the CPU");
  return *static_cast<const bool*>(more.const_data_ptr());
}

// A program that waits for its loop can be interrupted.
struct Signals {
  std::chrono::steady_clock::time_point last = std::chrono::steady_clock::now();
  void look() {
    auto now = std::chrono::steady_clock::now();
    if (now - last < std::chrono::milliseconds(50)) return;
    last = now;
    WithGil gil;
    if (PyErr_CheckSignals() != 0) throw python_error();
  }
};

// The results of a round that is no plan.
std::vector<Tensor> call(PyObject* callable, const std::vector<Tensor>& given, const std::vector<int64_t>& ints,
                         size_t count) {
  Ref args = Ref::steal(PyTuple_New((Py_ssize_t)(given.size() + ints.size())));
  if (!args) throw python_error();
  Py_ssize_t at = 0;
  for (const Tensor& t : given) PyTuple_SET_ITEM(args.get(), at++, THPVariable_Wrap(t));
  for (int64_t n : ints) PyTuple_SET_ITEM(args.get(), at++, PyLong_FromLongLong(n));
  Ref found = Ref::steal(PyObject_CallObject(callable, args.get()));
  if (!found) throw python_error();
  TORCH_CHECK(PyTuple_Check(found.get()) && (size_t)PyTuple_GET_SIZE(found.get()) == count,
              "jit: a round of a loop gives a tuple of ", count, " tensors");
  std::vector<Tensor> results;
  for (size_t i = 0; i < count; ++i) {
    PyObject* o = PyTuple_GET_ITEM(found.get(), (Py_ssize_t)i);
    TORCH_CHECK(THPVariable_Check(o), "jit: a round of a loop gives tensors");
    results.push_back(THPVariable_Unpack(o));
  }
  return results;
}

std::vector<Tensor> run_loop(std::string name, const Tensor& more, at::TensorList carried, at::TensorList others,
                             at::IntArrayRef numbers) {
  const size_t n = carried.size();
  std::vector<Tensor> given(carried.begin(), carried.end());
  given.insert(given.end(), others.begin(), others.end());
  bool goes_on = truth(more);
  if (goes_on) {
    std::shared_ptr<const Program> program;
    std::vector<int64_t> ints;
    Ref callable;
    {
      WithGil gil;
      auto found = table->find(name);
      TORCH_CHECK(found != table->end(), "jit: the rounds of a loop are gone: ", name);
      for (size_t k : found->second.positions) ints.push_back(numbers.at(k));
      PyObject* o = found->second.callable.get();
      if (plan_check(o) && !reinterpret_cast<PlanObject*>(o)->bound) {
        program = reinterpret_cast<PlanObject*>(o)->program;
        TORCH_CHECK((size_t)program->n_inputs == given.size() && (size_t)program->n_ints == ints.size() &&
                        program->outputs.size() == n + 1,
                    "jit: a plan that is not that of this loop");
      } else {
        callable = found->second.callable;
      }
      if (callable) {  // what is held of it is let go of with the GIL
        Signals signals;
        while (goes_on) {
          std::vector<Tensor> next = call(callable.get(), given, ints, n + 1);
          goes_on = truth(next[n]);
          std::copy(next.begin(), next.begin() + (ptrdiff_t)n, given.begin());
          signals.look();
        }
        callable.reset();
      }
    }
    Signals signals;
    std::vector<Tensor> next(n + 1);
    while (goes_on) {
      {
        Run run(*program);
        for (size_t i = 0; i < given.size(); ++i) run.set_input((int)i, given[i]);
        run.evaluate_regs(ints.data());
        execute(*program, run, /*gil_held=*/false, program->outputs.size(), [&] {
          for (size_t k = 0; k <= n; ++k) next[k] = run.plain_result(program->outputs[k]);
        });
      }
      goes_on = truth(next[n]);
      for (size_t k = 0; k < n; ++k) std::swap(given[k], next[k]);
      signals.look();
    }
  }
  // Results are memory of their own.
  std::vector<Tensor> results;
  for (size_t k = 0; k < n; ++k) {
    auto shares = [&](const Tensor& t) { return t.has_storage() && t.storage().is_alias_of(given[k].storage()); };
    bool shared = std::any_of(carried.begin(), carried.end(), shares) ||
                  std::any_of(others.begin(), others.end(), shares) ||
                  std::any_of(results.begin(), results.end(), shares);
    results.push_back(shared ? at::clone(given[k]) : given[k]);
  }
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
     "define_round(name, callable, positions): what jit::run_loop calls in each round of a loop, a plan or a function: "
     "with what is carried, the other tensors, and those of the loop's integers. It returns what is carried on, and "
     "whether there is another round."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(jit, m) {
  m.def("run_loop(str round, Tensor more, Tensor[] carried, Tensor[] others, int[] numbers) -> Tensor[]");
  m.impl("run_loop", c10::DispatchKey::CompositeExplicitAutograd, run_loop);
}

bool init_rounds(PyObject* module) { return PyModule_AddFunctions(module, methods) == 0; }

}  // namespace jit
