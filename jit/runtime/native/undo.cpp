// Failing runs: states of generators put back, notes for the call that is made instead, and injected failures for
// tests.
#include "undo.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>

namespace jit {

PyObject* set_python_error() noexcept {
  try {
    throw;
  } catch (const PythonError&) {  // is set
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception&) {
    torch::translate_exception_to_python(std::current_exception());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "jit: an unknown C++ exception");
  }
  return nullptr;
}

struct GeneratorStates::State {
  at::Generator generator;
  std::optional<at::mt19937> engine;  // of a CPU generator, with the normal numbers that it has in store
  std::optional<float> next_float;
  std::optional<double> next_double;
  uint64_t seed = 0, offset = 0;  // of any other
  State* next;
};

GeneratorStates::~GeneratorStates() {
  while (first_) {
    State* s = first_;
    first_ = s->next;
    delete s;
  }
}

void GeneratorStates::add(const at::Generator& generator) {
  if (!generator.defined()) return;
  for (State* s = first_; s; s = s->next)
    if (s->generator == generator) return;
  auto s = std::make_unique<State>();
  s->generator = generator;
  if (generator.device().is_cpu()) {
    auto* cpu = generator.get<at::CPUGeneratorImpl>();
    std::lock_guard<std::mutex> lock(cpu->mutex_);
    s->engine = cpu->engine();
    s->next_float = cpu->next_float_normal_sample();
    s->next_double = cpu->next_double_normal_sample();
  } else {
    try {
      std::lock_guard<std::mutex> lock(s->generator.mutex());
      s->seed = generator.current_seed();
      s->offset = generator.get_offset();
    } catch (const c10::Error&) {
      return;  // one that tells no offset, as while a CUDA graph is recorded
    }
  }
  s->next = first_;
  first_ = s.release();
}

void GeneratorStates::note(int device, const torch::jit::Stack& arguments) {
  add(at::detail::getDefaultCPUGenerator());
  if (device >= 0) add(at::globalContext().defaultGenerator(c10::Device(c10::kCUDA, (c10::DeviceIndex)device)));
  for (const auto& v : arguments)
    if (v.isGenerator()) add(v.toGenerator());
}

void GeneratorStates::restore() noexcept {
  for (State* s = first_; s; s = s->next) {
    try {
      if (s->engine) {
        auto* cpu = s->generator.get<at::CPUGeneratorImpl>();
        std::lock_guard<std::mutex> lock(cpu->mutex_);
        cpu->set_engine(*s->engine);
        cpu->set_next_float_normal_sample(s->next_float);
        cpu->set_next_double_normal_sample(s->next_double);
      } else {
        std::lock_guard<std::mutex> lock(s->generator.mutex());
        s->generator.set_current_seed(s->seed);
        s->generator.set_offset(s->offset);
      }
    } catch (...) {  // the others are put back all the same
    }
  }
}

Faults faults;

void Faults::hit(const char* what) {
  if (left.fetch_sub(1) != 0) return;
  if (interrupts.load()) PyErr_SetInterrupt();
  else TORCH_CHECK_WITH(OutOfMemoryError, false, "injected failure at ", what);
}

namespace {

struct Failure {
  bool final = false;
  std::vector<Happened> happened;
  PyObject* error = nullptr;  // what the notes are about, once it is a Python error
};

// Never freed by the thread's end, when its objects could no longer be let go of. Null where nothing has to be told.
thread_local Failure* failure = nullptr;

void forget() {
  if (!failure) return;
  std::unique_ptr<Failure> old(failure);
  failure = nullptr;
  Py_XDECREF(old->error);
}

thread_local bool signalled = false;
thread_local PyObject* tied = nullptr;  // the error of the last run that has failed, for comparing: it may be gone

PyObject* tail_call = nullptr;  // the type TailCall

PyObject* raise_again(PyObject* error) {
  PyErr_Restore(Py_NewRef((PyObject*)Py_TYPE(error)), Py_NewRef(error), PyException_GetTraceback(error));
  return nullptr;
}

// failed(error, repeatable) -> what the rewritten function calls as TailCall(original, *arguments) when its plan, or if
// it is `repeatable` what follows the plan, has raised `error`. What others have raised meanwhile, signal handlers
// above all, is raised again.
PyObject* py_failed(PyObject*, PyObject* const* args, Py_ssize_t n) {
  if (n != 2) raise(PyExc_TypeError, "failed(error, repeatable)");
  PyObject* error = args[0];
  bool of_run = tied == error;
  tied = nullptr;
  if (!of_run) {
    Ref module = Ref::steal(checked(PyImport_ImportModule("jit.runtime.happened")));
    Ref foreign = Ref::steal(checked(PyObject_CallMethod(module.get(), "is_foreign", "OO", error, args[1])));
    return foreign.get() == Py_True ? raise_again(error) : Py_NewRef(tail_call);
  }
  if (!failure || failure->error != error) return Py_NewRef(tail_call);
  bool final = failure->final;
  std::vector<Happened> happened = std::move(failure->happened);
  forget();
  if (final) return raise_again(error);
  Ref records = Ref::steal(PyList_New(0));
  for (const Happened& h : happened) {
    if (!records) return nullptr;
    Ref results = Ref::steal(PyTuple_New((Py_ssize_t)h.results.size()));
    for (size_t i = 0; results && i < h.results.size(); ++i) {
      PyObject* t = THPVariable_Wrap(h.results[i]);
      if (!t) return nullptr;
      PyTuple_SET_ITEM(results.get(), (Py_ssize_t)i, t);
    }
    const auto& name = h.op.schema().operator_name();
    Ref record = Ref::steal(results ? Py_BuildValue("(ssOO)", name.name.c_str(), name.overload_name.c_str(),
                                                    results.get(), h.raised ? error : Py_None)
                                    : nullptr);
    if (!record || PyList_Append(records.get(), record.get()) != 0) return nullptr;
  }
  Ref module = Ref::steal(PyImport_ImportModule("jit.runtime.happened"));
  return module ? PyObject_CallMethod(module.get(), "again", "OO", tail_call, records.get()) : nullptr;
}

// fail_at(points[, interrupt]): the run that comes to the so-manieth point where one may fail, counted from now on,
// does. -1: none.
PyObject* py_fail_at(PyObject*, PyObject* args) {
  long long points;
  int interrupt = 0;
  if (!PyArg_ParseTuple(args, "L|p:fail_at", &points, &interrupt)) return nullptr;
  faults.interrupts = interrupt;
  long long left = faults.left.exchange(points);
  return PyLong_FromLongLong(left);
}

PyMethodDef methods[] = {
    {"failed", (PyCFunction)(void (*)(void))Entry<py_failed>::call, METH_FASTCALL,
     "failed(error, repeatable) -> what is called with the original function and its arguments when a plan has raised; "
     "raises the error where the plan has changed something."},
    {"fail_at", Entry<py_fail_at>::call, METH_VARARGS,
     "fail_at(points, interrupt=False): for tests. One of the next points where a run may fail does, or is "
     "interrupted; -1: none. Returns how many were left."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void note_failure(bool final, std::vector<Happened>&& happened) noexcept {
  // Notes on an earlier failure are of no use any more; who holds an error there is asked for the GIL in `tie_failure`.
  if (!final && happened.empty()) return;
  if (!failure) failure = new Failure();
  failure->final = final;
  failure->happened = std::move(happened);
  if (failure->error) {
    PyGILState_STATE gil = PyGILState_Ensure();
    Py_CLEAR(failure->error);
    PyGILState_Release(gil);
  }
}

void note_signal() noexcept { signalled = true; }

void tie_failure() {
  tied = nullptr;
  if (std::exchange(signalled, false)) return;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (value && traceback) PyException_SetTraceback(value, traceback);
  tied = value;
  if (failure && !failure->error) failure->error = Py_XNewRef(value);
  PyErr_Restore(type, value, traceback);
}

bool init_undo(PyObject* module) {
  tail_call = PyObject_GetAttrString(module, "TailCall");
  return tail_call && PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace jit
