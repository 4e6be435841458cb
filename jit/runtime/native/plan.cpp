// The plan executor: interprets the steps of a Plan with no Python in between.
//
// A slot starts out as a pointer with a lazy description (storage, dtype, sizes); a Tensor object is made only when an
// ATen step or an output needs one. All state of a run lives in the run, so that a plan can be entered again, by
// recursion or from other threads.
#include "plan.h"

#include <torch/csrc/Exceptions.h>

#include "grad_program.h"
#include "plan_object.h"
#include "plan_parse.h"
#include "weak.h"

namespace jit {
namespace {

extern PyTypeObject PlanType;

PyObject* results_of(PlanObject* plan, PyObject* const* args, size_t nargsf, PyObject* names) {
  Call call(plan);
  if (!call.take(args, nargsf, names)) return nullptr;
  const Program& p = *call.program;
  PlanRange range(p, call.run);
  Ref result;
  execute(p, call.run, /*gil_held=*/true, p.outputs.size(), [&] {
    result = Ref::steal(checked(PyTuple_New((Py_ssize_t)p.outputs.size())));
    for (size_t i = 0; i < p.outputs.size(); ++i)
      PyTuple_SET_ITEM(result.get(), (Py_ssize_t)i, call.wrapped(p.outputs[i]));
  });
  return result.release();
}

PyObject* run_plan(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* names) {
  auto* plan = reinterpret_cast<PlanObject*>(object);
  try {
    // CPU kernels do not warn.
    if (!plan->program->has_aten && !plan->program->has_gpu && !plan->program->commits())
      return results_of(plan, args, nargsf, names);
    torch::PyWarningHandler warnings;
    try {
      return results_of(plan, args, nargsf, names);
    } catch (...) {
      warnings.set_in_exception();
      throw;
    }
  } catch (...) {
    return set_python_error();
  }
}

PyObject* plan_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* names) {
  PyObject* result = run_plan(object, args, nargsf, names);
  if (!result) tie_failure();
  return result;
}

// ---- the Python type ------------------------------------------------------------------------------------------------

PyObject* make(std::shared_ptr<const Program> program, PyObject* data, PyObject* bound, vectorcallfunc call = plan_call,
               std::shared_ptr<const GradProgram> gradient = nullptr, PyObject* derivative = nullptr) {
  auto* self = PyObject_GC_New(PlanObject, &PlanType);
  if (!self) return nullptr;
  self->vectorcall = call;
  self->n_free = program->n_inputs;
  new (&self->program) std::shared_ptr<const Program>(std::move(program));
  new (&self->gradient) std::shared_ptr<const GradProgram>(std::move(gradient));
  self->data = Py_NewRef(data);
  self->bound = Py_XNewRef(bound);
  self->derivative = Py_XNewRef(derivative);
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
  Py_CLEAR(self->derivative);
  self->program.~shared_ptr();
  self->gradient.~shared_ptr();
  PyObject_GC_Del(object);
}

int plan_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<PlanObject*>(object);
  Py_VISIT(self->data);
  Py_VISIT(self->bound);
  Py_VISIT(self->derivative);
  return 0;
}

int plan_clear(PyObject* object) {
  // The bound tensors stay: a call after this has to find as many inputs as n_free says.
  Py_CLEAR(reinterpret_cast<PlanObject*>(object)->data);
  Py_CLEAR(reinterpret_cast<PlanObject*>(object)->derivative);
  return 0;
}

PyObject* plan_repr(PyObject* object) {
  auto* self = reinterpret_cast<PlanObject*>(object);
  return PyUnicode_FromFormat("<jit%s plan: %d inputs (%d bound), %d ints, %zu steps, %zu outputs>",
                              self->gradient ? " differentiable" : "", self->program->n_inputs,
                              self->program->n_inputs - self->n_free, self->program->n_ints,
                              self->program->steps.size(), self->program->outputs.size());
}

// A tuple of bound inputs from the present one and {index: tensor}.
PyObject* bound_tuple(PlanObject* self, Py_ssize_t n, const int32_t* inputs, PyObject* const* tensors, bool weakly) {
  Py_ssize_t total = self->program->n_inputs;
  Ref out = Ref::steal(checked(PyTuple_New(total)));
  for (Py_ssize_t i = 0; i < total; ++i)
    PyTuple_SET_ITEM(out.get(), i, Py_NewRef(self->bound ? PyTuple_GET_ITEM(self->bound, i) : Py_None));
  for (Py_ssize_t k = 0; k < n; ++k) {
    if (inputs[k] < 0 || inputs[k] >= total)
      raise(PyExc_ValueError, "bind: the plan has no input " + std::to_string(inputs[k]));
    if (!THPVariable_Check(tensors[k]))
      raise(PyExc_TypeError, std::string("bind: expected a tensor, got ") + Py_TYPE(tensors[k])->tp_name);
    PyObject* old = PyTuple_GET_ITEM(out.get(), inputs[k]);
    PyTuple_SET_ITEM(out.get(), inputs[k],
                     weakly || weak_check(old) ? checked(weak_of_memory(tensors[k])) : Py_NewRef(tensors[k]));
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
  int weakly = 0;
  if (!PyArg_ParseTuple(args, "O!O|p:bind", &PlanType, &plan, &dict, &weakly)) return nullptr;
  auto* self = reinterpret_cast<PlanObject*>(plan);
  try {
    Binding b(dict);
    Ref bound = Ref::steal(bound_tuple(self, (Py_ssize_t)b.inputs.size(), b.inputs.data(), b.tensors.data(), weakly));
    return make(self->program, self->data ? self->data : Py_None, bound.get(), self->vectorcall, self->gradient,
                self->derivative);
  } catch (const PythonError&) {
    return nullptr;
  }
}

PyObject* plan_rebind_method(PyObject* plan, PyObject* dict) {
  try {
    Binding b(dict);
    return plan_rebind(plan, (Py_ssize_t)b.inputs.size(), b.inputs.data(), b.tensors.data()) ? Py_NewRef(Py_None)
                                                                                             : nullptr;
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

PyObject* plan_get_derivative(PyObject* o, void*) {
  PyObject* d = reinterpret_cast<PlanObject*>(o)->derivative;
  return Py_NewRef(d ? d : Py_None);
}

PyObject* plan_get_bound(PyObject* o, void*) {
  auto* self = reinterpret_cast<PlanObject*>(o);
  Ref out = Ref::steal(PyDict_New());
  if (!out || !self->bound) return out.release();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->bound); ++i) {
    PyObject* bound = PyTuple_GET_ITEM(self->bound, i);
    Ref t = weak_check(bound) ? Ref::steal(weak_get(bound)) : Ref::share(bound);
    if (!t || t.get() == Py_None) continue;
    Ref key = Ref::steal(PyLong_FromSsize_t(i));
    if (!key || PyDict_SetItem(out.get(), key.get(), t.get()) != 0) return nullptr;
  }
  return out.release();
}

PyObject* plan_get_recordings(PyObject* o, void*) {
  auto* self = reinterpret_cast<PlanObject*>(o);
  std::vector<const Program*> programs = {self->program.get()};
  std::vector<std::shared_ptr<const Program>> narrowed;
  if (self->gradient) {
    programs.push_back(self->gradient->backward.get());
    narrowed = self->gradient->all_narrowed();
    for (auto& program : narrowed) programs.push_back(program.get());
  }
  Ref told = Ref::steal(PyTuple_New((Py_ssize_t)programs.size()));
  for (size_t i = 0; told && i < programs.size(); ++i) {
    PyObject* one = programs[i]->graphs ? programs[i]->graphs->told() : Py_NewRef(Py_None);
    if (!one) return nullptr;
    PyTuple_SET_ITEM(told.get(), (Py_ssize_t)i, one);
  }
  return told.release();
}

PyMethodDef plan_methods[] = {
    {"rebind", Entry<plan_rebind_method>::call, METH_O,
     "rebind({input index: tensor}): replace bound inputs. Only inputs that are bound already."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef plan_getset[] = {
    {"data", plan_get_data, nullptr, "The Plan that this was loaded from.", nullptr},
    {"derivative", plan_get_derivative, nullptr,
     "(the Plan of the backward, the GradSpec) that `differentiable` was given, or None.", nullptr},
    {"recordings", plan_get_recordings, nullptr,
     "(of the plan, of its backward if there is one, of those for some tangents ..): None where calls are not "
     "recorded, or {\"recorded\": how many recordings were "
     "made, \"replayed\": how many calls they have served, \"refused\": why none was made at the last try, or None}.",
     nullptr},
    {"bound", plan_get_bound, nullptr, "The bound inputs, {input index: tensor}.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject PlanType = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyObject* py_loaded_gpu_modules(PyObject*, PyObject*) { return PyLong_FromLongLong(loaded_gpu_modules()); }

PyObject* py_pretend_graphs(PyObject*, PyObject* args) {
  int on = 0, waits = 0;
  if (!PyArg_ParseTuple(args, "p|p", &on, &waits)) return nullptr;
  pretend_graphs(on, waits);
  return Py_NewRef(Py_None);
}

PyObject* py_replace_fills(PyObject*, PyObject* graph) {
  void* handle = PyLong_AsVoidPtr(graph);
  if (!handle) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "replace_fills takes the handle of a CUDA graph");
    return nullptr;
  }
  return PyLong_FromLongLong(replace_fills(handle));
}

PyObject* py_define_recorded(PyObject*, PyObject* args) {
  const char *name, *overload;
  if (!PyArg_ParseTuple(args, "ss:define_recorded", &name, &overload)) return nullptr;
  return PyBool_FromLong(define_recorded(name, overload));
}

PyObject* py_direct_products(PyObject*, PyObject* on) {
  return PyBool_FromLong(direct_products(PyObject_IsTrue(on) == 1));
}

PyMethodDef methods[] = {
    {"direct_products", Entry<py_direct_products>::call, METH_O,
     "direct_products(on) -> bool: whether products on GPUs are done without PyTorch's operators, and "
     "whether "
     "they were."},
    {"pretend_graphs", Entry<py_pretend_graphs>::call, METH_VARARGS,
     "pretend_graphs(on, waits=False): for tests. Plans for CPUs are recorded too; a recording runs the steps on its "
     "own "
     "memory. Of calls that are timed, the device waits for the processor if waits."},
    {"replace_fills", Entry<py_replace_fills>::call, METH_O,
     "replace_fills(handle of a CUDA graph that is not yet instantiated) -> int: makes its fills of memory kernels, "
     "which take the device less long, and says how many."},
    {"loaded_gpu_modules", Entry<py_loaded_gpu_modules>::call, METH_NOARGS,
     "How many kernels are loaded on GPUs at present."},
    {"define_recorded", Entry<py_define_recorded>::call, METH_VARARGS,
     "define_recorded(name, overload) -> whether there is jit::recorded_<...>, see recorded.h."},
    {"load_plan", Entry<py_load_plan>::call, METH_O,
     "load_plan(Plan) -> callable. ValueError or TypeError says what is wrong with the data."},
    {"bind", Entry<py_bind>::call, METH_VARARGS,
     "bind(plan, {input index: tensor}, weakly=False) -> a plan with those inputs given; it takes the others in order. "
     "weakly: they are not kept alive; a call needs them to be where they were, and may only come right after a look "
     "at that. One without their memory is a ReferenceError."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyObject* plan_with_gradient(PlanObject* like, vectorcallfunc call, std::shared_ptr<const GradProgram> gradient,
                             PyObject* derivative) {
  return make(like->program, like->data ? like->data : Py_None, like->bound, call, std::move(gradient), derivative);
}

bool plan_check(PyObject* object) { return Py_TYPE(object) == &PlanType; }

bool plan_rebind(PyObject* plan, Py_ssize_t n, const int32_t* inputs, PyObject* const* tensors) {
  auto* self = reinterpret_cast<PlanObject*>(plan);
  try {
    for (Py_ssize_t i = 0; i < n; ++i)
      if (!self->bound || inputs[i] < 0 || inputs[i] >= PyTuple_GET_SIZE(self->bound) ||
          PyTuple_GET_ITEM(self->bound, inputs[i]) == Py_None)
        raise(PyExc_ValueError, "rebind: input " + std::to_string(inputs[i]) + " is not bound");
    PyObject* fresh = bound_tuple(self, n, inputs, tensors, false);
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
  PlanType.tp_doc =
      "A loaded plan: plan(*tensors, *ints) -> tuple of tensors. Inputs that are bound are left out of the arguments.";
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
  return PyModule_AddObjectRef(module, "Plan", (PyObject*)&PlanType) == 0 &&
         PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace jit
