// The plan executor: interprets the steps of a Plan with no Python in between.
//
// A slot starts out as a pointer with a lazy description (storage, dtype, sizes); a Tensor object is made only when an ATen step or an output needs one.
// All state of a run lives in the run, so that a plan can be entered again, by recursion or from other threads.
#include "plan.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "plan_parse.h"

namespace jit {
namespace {

// Bytes of input and constant-size output above which the GIL is given up for a run (doing so costs about 0.1 us).
constexpr int64_t kReleaseGilBytes = 64 << 10;
struct NoGil {
  PyThreadState* state = nullptr;
  void release() { state = PyEval_SaveThread(); }
  void acquire() {
    if (state) PyEval_RestoreThread(state);
    state = nullptr;
  }
  ~NoGil() { acquire(); }
};

struct PlanObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  std::shared_ptr<const Program> program;
  PyObject* data;   // the Plan it was made from
  PyObject* bound;  // null, or a tuple with a tensor or None per input; replaced as a whole
  int32_t n_free;   // inputs that are given on each call
};

extern PyTypeObject PlanType;

PyObject* plan_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* names) {
  auto* self = reinterpret_cast<PlanObject*>(object);
  HANDLE_TH_ERRORS
  try {
  Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
  // The program and the bound tensors have to outlive the run, whatever other threads do to this object.
  std::shared_ptr<const Program> keep = self->program;
  const Program& p = *keep;
  Ref bound = Ref::share(self->bound);
  if ((names && PyTuple_GET_SIZE(names)) || nargs != self->n_free + p.n_ints) {
    PyErr_Format(PyExc_TypeError, "this plan takes %d tensors and %d ints by position, not %zd arguments", self->n_free, p.n_ints, nargs + (names ? PyTuple_GET_SIZE(names) : 0));
    return nullptr;
  }
  Run run(p);
  PyObject* inputs_inline[24];
  std::unique_ptr<PyObject*[]> inputs_heap;
  PyObject** inputs = inputs_inline;
  if (p.n_inputs > 24) {
    inputs_heap.reset(new PyObject*[p.n_inputs]);
    inputs = inputs_heap.get();
  }
  Py_ssize_t next = 0;
  for (int i = 0; i < p.n_inputs; ++i) {
    PyObject* o = bound ? PyTuple_GET_ITEM(bound.get(), i) : Py_None;
    if (o == Py_None) {
      o = args[next++];
      if (!THPVariable_Check(o)) {
        PyErr_Format(PyExc_TypeError, "argument %zd of the plan has to be a tensor, not %s", next - 1, Py_TYPE(o)->tp_name);
        return nullptr;
      }
    }
    inputs[i] = o;
    run.set_input(i, THPVariable_Unpack(o));
  }
  int64_t ints_inline[16];
  std::vector<int64_t> ints_heap;
  int64_t* ints = ints_inline;
  if (p.n_ints > 16) {
    ints_heap.resize(p.n_ints);
    ints = ints_heap.data();
  }
  for (int i = 0; i < p.n_ints; ++i) {
    ints[i] = PyLong_AsLongLong(args[next++]);
    if (ints[i] == -1 && PyErr_Occurred()) return nullptr;
  }
  run.evaluate_regs(ints);

  int device = -1;
  void* stream = nullptr;
  c10::OptionalDeviceGuard device_guard;
  if (p.has_gpu || p.has_cuda_alloc) {
    device = run.cuda_device();
    if (device < 0 && p.has_cuda_alloc) {
      at::globalContext().lazyInitDevice(c10::kCUDA);
      device = c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index();
    }
    if (device >= 0) device_guard.reset_device(c10::Device(c10::kCUDA, (c10::DeviceIndex)device));
    TORCH_CHECK(device >= 0 || !p.has_gpu, "a plan launches GPU kernels but nothing that it uses is on a GPU");
    if (p.has_gpu) stream = current_stream(device);
  }
  {
    NoGil gil;
    if (p.has_aten || p.has_gpu || run.input_bytes() >= kReleaseGilBytes) gil.release();
    if (p.has_gpu) run.realign();
    if (p.has_aten) {
      c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
      run.run(device, stream);
    } else {
      run.run(device, stream);
    }
    if (p.has_gpu) run.restore();
  }
  run.bump_versions();

  Ref result = Ref::steal(checked(PyTuple_New((Py_ssize_t)p.outputs.size())));
  for (size_t i = 0; i < p.outputs.size(); ++i) {
    int32_t slot = p.outputs[i];
    PyObject* o = slot < p.n_inputs ? Py_NewRef(inputs[slot]) : THPVariable_Wrap(run.result(slot));
    PyTuple_SET_ITEM(result.get(), (Py_ssize_t)i, checked(o));
  }
  return result.release();
  } catch (const PythonError&) {
    return nullptr;
  }
  END_HANDLE_TH_ERRORS
}

// ---- the Python type --------------------------------------------------------------------------------------------------------

PyObject* make(std::shared_ptr<const Program> program, PyObject* data, PyObject* bound) {
  auto* self = PyObject_GC_New(PlanObject, &PlanType);
  if (!self) return nullptr;
  self->vectorcall = plan_call;
  self->n_free = program->n_inputs;
  new (&self->program) std::shared_ptr<const Program>(std::move(program));
  self->data = Py_NewRef(data);
  self->bound = Py_XNewRef(bound);
  if (bound)
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(bound); ++i) self->n_free -= PyTuple_GET_ITEM(bound, i) != Py_None;
  PyObject_GC_Track(reinterpret_cast<PyObject*>(self));
  return reinterpret_cast<PyObject*>(self);
}

void plan_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<PlanObject*>(object);
  PyObject_GC_UnTrack(object);
  Py_CLEAR(self->data);
  Py_CLEAR(self->bound);
  self->program.~shared_ptr();
  PyObject_GC_Del(object);
}

int plan_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<PlanObject*>(object);
  Py_VISIT(self->data);
  Py_VISIT(self->bound);
  return 0;
}

int plan_clear(PyObject* object) {
  // The bound tensors stay: a call after this has to find as many inputs as n_free says.
  Py_CLEAR(reinterpret_cast<PlanObject*>(object)->data);
  return 0;
}

PyObject* plan_repr(PyObject* object) {
  auto* self = reinterpret_cast<PlanObject*>(object);
  return PyUnicode_FromFormat("<jit plan: %d inputs (%d bound), %d ints, %zu steps, %zu outputs>", self->program->n_inputs, self->program->n_inputs - self->n_free, self->program->n_ints,
                              self->program->steps.size(), self->program->outputs.size());
}

// A tuple of bound inputs from the present one and {index: tensor}.
PyObject* bound_tuple(PlanObject* self, Py_ssize_t n, const int32_t* inputs, PyObject* const* tensors) {
  Py_ssize_t total = self->program->n_inputs;
  Ref out = Ref::steal(checked(PyTuple_New(total)));
  for (Py_ssize_t i = 0; i < total; ++i) PyTuple_SET_ITEM(out.get(), i, Py_NewRef(self->bound ? PyTuple_GET_ITEM(self->bound, i) : Py_None));
  for (Py_ssize_t k = 0; k < n; ++k) {
    if (inputs[k] < 0 || inputs[k] >= total) raise(PyExc_ValueError, "bind: the plan has no input " + std::to_string(inputs[k]));
    if (!THPVariable_Check(tensors[k])) raise(PyExc_TypeError, std::string("bind: expected a tensor, got ") + Py_TYPE(tensors[k])->tp_name);
    PyObject* old = PyTuple_GET_ITEM(out.get(), inputs[k]);
    PyTuple_SET_ITEM(out.get(), inputs[k], Py_NewRef(tensors[k]));
    Py_DECREF(old);
  }
  return out.release();
}

struct Binding {
  std::vector<int32_t> inputs;
  std::vector<PyObject*> tensors;
  explicit Binding(PyObject* dict) {
    if (!PyDict_Check(dict)) raise(PyExc_TypeError, "bind takes a dict of input index to tensor");
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(dict, &at, &key, &value)) {
      inputs.push_back((int32_t)as_int(key, "an input index"));
      tensors.push_back(value);
    }
  }
};

PyObject* py_bind(PyObject*, PyObject* args) {
  PyObject *plan, *dict;
  if (!PyArg_ParseTuple(args, "O!O:bind", &PlanType, &plan, &dict)) return nullptr;
  auto* self = reinterpret_cast<PlanObject*>(plan);
  try {
    Binding b(dict);
    Ref bound = Ref::steal(bound_tuple(self, (Py_ssize_t)b.inputs.size(), b.inputs.data(), b.tensors.data()));
    return make(self->program, self->data ? self->data : Py_None, bound.get());
  } catch (const PythonError&) {
    return nullptr;
  }
}

PyObject* plan_rebind_method(PyObject* plan, PyObject* dict) {
  try {
    Binding b(dict);
    return plan_rebind(plan, (Py_ssize_t)b.inputs.size(), b.inputs.data(), b.tensors.data()) ? Py_NewRef(Py_None) : nullptr;
  } catch (const PythonError&) {
    return nullptr;
  }
}

PyObject* py_load_plan(PyObject*, PyObject* data) {
  HANDLE_TH_ERRORS
  try {
    return make(parse(data), data, nullptr);
  } catch (const PythonError&) {
    return nullptr;
  }
  END_HANDLE_TH_ERRORS
}

PyObject* plan_get_data(PyObject* o, void*) {
  PyObject* d = reinterpret_cast<PlanObject*>(o)->data;
  return Py_NewRef(d ? d : Py_None);
}

PyObject* plan_get_bound(PyObject* o, void*) {
  auto* self = reinterpret_cast<PlanObject*>(o);
  Ref out = Ref::steal(PyDict_New());
  if (!out || !self->bound) return out.release();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->bound); ++i) {
    PyObject* t = PyTuple_GET_ITEM(self->bound, i);
    if (t == Py_None) continue;
    Ref key = Ref::steal(PyLong_FromSsize_t(i));
    if (!key || PyDict_SetItem(out.get(), key.get(), t) != 0) return nullptr;
  }
  return out.release();
}

PyMethodDef plan_methods[] = {
    {"rebind", plan_rebind_method, METH_O, "rebind({input index: tensor}): replace bound inputs. Only inputs that are bound already."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef plan_getset[] = {
    {"data", plan_get_data, nullptr, "The Plan that this was loaded from.", nullptr},
    {"bound", plan_get_bound, nullptr, "The bound inputs, {input index: tensor}.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject PlanType = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyMethodDef methods[] = {
    {"load_plan", py_load_plan, METH_O, "load_plan(Plan) -> callable. ValueError or TypeError says what is wrong with the data."},
    {"bind", py_bind, METH_VARARGS, "bind(plan, {input index: tensor}) -> a plan with those inputs given; it takes the others in order."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool plan_check(PyObject* object) { return Py_TYPE(object) == &PlanType; }

bool plan_rebind(PyObject* plan, Py_ssize_t n, const int32_t* inputs, PyObject* const* tensors) {
  auto* self = reinterpret_cast<PlanObject*>(plan);
  try {
    for (Py_ssize_t i = 0; i < n; ++i)
      if (!self->bound || inputs[i] < 0 || inputs[i] >= PyTuple_GET_SIZE(self->bound) || PyTuple_GET_ITEM(self->bound, inputs[i]) == Py_None)
        raise(PyExc_ValueError, "rebind: input " + std::to_string(inputs[i]) + " is not bound");
    PyObject* fresh = bound_tuple(self, n, inputs, tensors);
    PyObject* old = self->bound;
    self->bound = fresh;
    Py_XDECREF(old);
    return true;
  } catch (const PythonError&) {
    return false;
  }
}

void plan_unbind(PyObject* plan) {
  auto* self = reinterpret_cast<PlanObject*>(plan);
  self->n_free = self->program->n_inputs;
  Py_CLEAR(self->bound);
}

bool init_plan(PyObject* module) {
  PlanType.tp_name = "jit.runtime.native.Plan";
  PlanType.tp_doc = "A loaded plan: plan(*tensors, *ints) -> tuple of tensors. Inputs that are bound are left out of the arguments.";
  PlanType.tp_basicsize = sizeof(PlanObject);
  PlanType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  PlanType.tp_vectorcall_offset = offsetof(PlanObject, vectorcall);
  PlanType.tp_call = PyVectorcall_Call;
  PlanType.tp_dealloc = plan_dealloc;
  PlanType.tp_traverse = plan_traverse;
  PlanType.tp_clear = plan_clear;
  PlanType.tp_repr = plan_repr;
  PlanType.tp_methods = plan_methods;
  PlanType.tp_getset = plan_getset;
  if (PyType_Ready(&PlanType) != 0) return false;
  return PyModule_AddObjectRef(module, "Plan", (PyObject*)&PlanType) == 0 && PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace jit
