// The Python object of a plan, and what every way of calling one does.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "common.h"
#include "plan_graphs.h"
#include "plan_run.h"
#include "weak_object.h"

namespace jit {

struct GradProgram;

struct PlanObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  std::shared_ptr<const Program> program;
  std::shared_ptr<const GradProgram>
      gradient;          // null, or how to differentiate; results behind its n_outputs are then not returned
  PyObject* data;        // the Plan it was made from
  PyObject* derivative;  // null, or (the Plan of the backward, the GradSpec) that the gradient was made from
  PyObject* bound;       // null, or a tuple with a tensor, a Weak or None per input; replaced as a whole
  int32_t n_free;        // inputs that are given on each call
};

// A new object with the same data and bound inputs as `like`, called through `call`. Null with a Python error set.
PyObject* plan_with_gradient(PlanObject* like, vectorcallfunc call, std::shared_ptr<const GradProgram> gradient,
                             PyObject* derivative);

// Calls a plan that has a gradient.
PyObject* differentiable_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* names);

// A range around a run of a plan, where somebody is told of what it is a part of.
// `sequence`: see `Range`.
class PlanRange {
 public:
  template <typename Sequence>
  PlanRange(const Program& p, Run& run, Sequence&& sequence) {
    if (C10_LIKELY(!in_watched)) return;
    run.watch();
    range_.begin(p.shown, sequence());
  }
  PlanRange(const Program& p, Run& run) : PlanRange(p, run, [] { return (int64_t)-1; }) {}

 private:
  Range range_;
};

// Serves a call by a recording of its steps; false where none does. All that may raise comes before the launch.
template <typename Results>
bool replay(Graphs& graphs, const Program& p, Run& run, int device, void* stream, bool gil_held, size_t n_public,
            Results&& results) {
  struct Gil {
    bool taken;
    PyGILState_STATE state{};
    explicit Gil(bool held) : taken(!held) {
      if (taken) state = PyGILState_Ensure();
    }
    ~Gil() {
      if (taken) PyGILState_Release(state);
    }
  } gil(gil_held);
  bool committing = false;
  try {
    std::shared_ptr<Recording> recording = graphs.serve(run, device, stream, n_public);
    if (!recording) return false;
    graphs.prepare(*recording, run, device);
    results();
    if (gil_held && p.commits() && PyErr_CheckSignals() != 0) {
      note_signal();
      throw PythonError();
    }
    committing = p.commits();
    Range range;
    if (C10_UNLIKELY(run.is_watched())) range.begin(p.shown_replay);
    graphs.launch(*recording, run, device, stream);
    run.bump_versions();
    return true;
  } catch (...) {
    run.failed(committing);
    throw;
  }
}

// Runs all steps on the program's device and torch's current stream there; `results` is called when what may raise is
// done but for itself, and before anything is written that was there before the run. Throws what the steps, `results`
// and a pending signal throw; then nothing has been changed. With the GIL held, `gil_held`, it is given up while the
// steps run, when they are likely to take long. A plan that is recorded is replayed where it can be; results from
// number `n_public` on are read by backwards of ours alone.
template <typename Results>
void execute(const Program& p, Run& run, bool gil_held, size_t n_public, Results&& results) {
  // Bytes of input and constant-size output above which the GIL is given up (doing so costs about 0.1 us).
  constexpr int64_t kReleaseGilBytes = 64 << 10;
  struct NoGil {
    PyThreadState* state = nullptr;
    ~NoGil() {
      if (state) PyEval_RestoreThread(state);
    }
  };
  int device = -1;
  void* stream = nullptr;
  c10::OptionalDeviceGuard device_guard;
  if (p.has_gpu || p.has_cuda_alloc || p.graphs) {
    device = run.cuda_device();
    if (device < 0 && p.has_cuda_alloc) {
      at::globalContext().lazyInitDevice(c10::kCUDA);
      device = c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index();
    }
    if (device >= 0) device_guard.reset_device(c10::Device(c10::kCUDA, (c10::DeviceIndex)device));
    TORCH_CHECK(device >= 0 || !p.has_gpu, "a plan launches GPU kernels but nothing that it uses is on a GPU");
    if (p.has_gpu || ((p.graphs || p.has_products) && device >= 0)) stream = current_stream(device);
  }
  if (p.graphs && replay(*p.graphs, p, run, device, stream, gil_held, n_public, results)) return;
  const bool long_running = gil_held && (p.has_aten || p.has_gpu || run.input_bytes() >= kReleaseGilBytes);
  auto phase = [&](auto&& steps) {
    NoGil gil;
    if (long_running) gil.state = PyEval_SaveThread();
    if (p.has_aten) {
      c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                               c10::autocast_dispatch_keyset);
      steps();
    } else {
      steps();
    }
  };
  bool committing = false;
  try {
    Timing* timing = run.timing();
    if (timing && device >= 0) begin_launches(device, stream);
    if (timing) timing->begin(stream);
    auto compute = [&] {
      phase([&] {
        if (p.has_gpu) run.realign();
        run.compute(device, stream);
        if (p.commits()) run.check_commit(device);
      });
    };
    if (gil_held && p.commits()) {
      torch::PyWarningHandler warnings;  // one may be an error, and is shown before anything is written
      try {
        compute();
      } catch (...) {
        warnings.set_in_exception();
        throw;
      }
    } else {
      compute();
    }
    results();
    if (p.commits()) {
      // A signal that came meanwhile: its handler may raise, now or not before the program's next step.
      if (gil_held && PyErr_CheckSignals() != 0) {
        note_signal();
        throw PythonError();
      }
      committing = true;
      if (p.commit < p.steps.size() || run.has_realigned())
        phase([&] {
          run.commit(device, stream);
          run.restore();
        });
      run.bump_versions();
    } else if (run.has_realigned()) {
      run.restore();
    }
    if (timing) timing->end(stream);
  } catch (...) {
    run.failed(committing);
    throw;
  }
}

// One call: the arguments and the bound inputs, laid into a run.
struct Call {
  explicit Call(PlanObject* plan)
      : program(plan->program.get()),
        plan_(Ref::share(reinterpret_cast<PyObject*>(plan))),
        bound_(Ref::share(plan->bound)),
        n_free_(plan->n_free),
        run(*program) {}

  // Returns false with a Python error set when the arguments do not fit.
  bool take(PyObject* const* args, size_t nargsf, PyObject* names) {
    const Program& p = *program;
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    // The ints may come as one bytes object of int64 values, which is what a program of numbers gives.
    bool packed = nargs == n_free_ + 1 && PyBytes_CheckExact(args[nargs - 1]) &&
                  PyBytes_GET_SIZE(args[nargs - 1]) == (Py_ssize_t)(p.n_ints * sizeof(int64_t));
    if ((names && PyTuple_GET_SIZE(names)) || (nargs != n_free_ + p.n_ints && !packed)) {
      PyErr_Format(PyExc_TypeError, "this plan takes %d tensors and %d ints by position, not %zd arguments", n_free_,
                   p.n_ints, nargs + (names ? PyTuple_GET_SIZE(names) : 0));
      return false;
    }
    if (p.n_inputs > kInline) {
      inputs_heap_.reset(new PyObject*[p.n_inputs]);
      inputs = inputs_heap_.get();
    }
    Py_ssize_t next = 0;
    for (int i = 0; i < p.n_inputs; ++i) {
      PyObject* o = bound_ ? PyTuple_GET_ITEM(bound_.get(), i) : Py_None;
      if (bound_) fetch(i);
      if (o == Py_None) {
        o = args[next++];
        if (!THPVariable_Check(o)) {
          PyErr_Format(PyExc_TypeError, "argument %zd of the plan has to be a tensor, not %s", next - 1,
                       Py_TYPE(o)->tp_name);
          return false;
        }
      } else if (is_weak(o)) {
        auto* weak = reinterpret_cast<WeakObject*>(o);
        o = weak->storage._unsafe_get_target() ? Py_XNewRef(weak->with_memory()) : weak_get(o);
        if (!o) {
          PyErr_SetString(PyExc_ReferenceError, "a tensor that the plan was bound to is gone");
          return false;
        }
        hold(o);
      }
      inputs[i] = o;
      run.set_input(i, THPVariable_Unpack(o));
    }
    if (p.n_ints > kInline) {
      ints_heap_.reset(new int64_t[p.n_ints]);
      ints = ints_heap_.get();
    }
    if (packed) std::memcpy(ints, PyBytes_AS_STRING(args[next]), p.n_ints * sizeof(int64_t));
    for (int i = 0; i < (packed ? 0 : p.n_ints); ++i) {
      ints[i] = PyLong_AsLongLong(args[next++]);
      if (ints[i] == -1 && PyErr_Occurred()) return false;
    }
    run.evaluate_regs(ints);
    return true;
  }

  ~Call() {
    for (int32_t i = 0; i < n_held_; ++i) Py_DECREF(held_[i]);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const at::Tensor& input(int32_t i) const { return THPVariable_Unpack(inputs[i]); }

  // The object to return for a slot: an input is the very object that was given.
  PyObject* wrapped(int32_t slot) {
    return checked(slot < program->n_inputs ? Py_NewRef(inputs[slot]) : THPVariable_Wrap(run.result(slot)));
  }

  const Program* program;
  // The plan, with its program, and the bound tensors have to outlive the run, whatever other threads do.
  Ref plan_, bound_;
  int32_t n_free_;
  static constexpr int kInline = 24;
  // Asks early for the memory that inputs behind this one will be looked for in.
  void fetch(int i) const {
    constexpr int kAhead = 4;
    if (i + 2 * kAhead < program->n_inputs) __builtin_prefetch(PyTuple_GET_ITEM(bound_.get(), i + 2 * kAhead));
    if (i + kAhead >= program->n_inputs) return;
    PyObject* o = PyTuple_GET_ITEM(bound_.get(), i + kAhead);
    if (!is_weak(o)) return;
    __builtin_prefetch(reinterpret_cast<WeakObject*>(o)->object);
    __builtin_prefetch(reinterpret_cast<WeakObject*>(o)->storage._unsafe_get_target());
  }

  // The run needs what is bound weakly, whatever other threads let go of. Takes the reference.
  void hold(PyObject* o) {
    if (n_held_ == 0 && program->n_inputs > kInline) {
      held_heap_.reset(new PyObject*[program->n_inputs]);
      held_ = held_heap_.get();
    }
    held_[n_held_++] = o;
  }
  PyObject* held_inline_[kInline];
  std::unique_ptr<PyObject*[]> held_heap_;
  PyObject** held_ = held_inline_;
  int32_t n_held_ = 0;
  PyObject* inputs_inline_[kInline];
  std::unique_ptr<PyObject*[]> inputs_heap_;
  PyObject** inputs = inputs_inline_;  // borrowed
  int64_t ints_inline_[kInline];
  std::unique_ptr<int64_t[]> ints_heap_;
  int64_t* ints = ints_inline_;
  Run run;
};

}  // namespace jit
