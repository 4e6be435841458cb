// What guards can reach objects by: each accessor is an entry of the table at the end, with how its payload is taken
// and how it is read.
//
// Sources in jit/frame/source.py name these, and jit/runtime/guards.py says what each is.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>

#include "generator_state.h"
#include "guard_parse.h"
#include "guard_tensor.h"
#include "guard_walk.h"
#include "guards.h"

namespace jit {
namespace {

// payloads

void take_index(Parser&, Accessor& a, PyObject* payload) { a.index = as_int(payload, "an accessor's index"); }

void take_name(Parser&, Accessor& a, PyObject* payload) {
  a.payload = interned(payload);
  a.hash = PyObject_Hash(a.payload.get());
}

void take_key(Parser& parser, Accessor& a, PyObject* payload) {
  if (PyLong_CheckExact(payload)) {
    int overflow;
    a.index = PyLong_AsLongLongAndOverflow(payload, &overflow);
  }
  a.hash = parser.hash_of(payload);
}

void take_weak(Parser& parser, Accessor& a, PyObject* payload) {
  a.payload =
      weak_check(payload) ? parser.loosely(payload) : Ref::steal(checked(PyWeakref_NewRef(payload, parser.on_death)));
}

enum FunctionField : int64_t { kCode, kDefaults, kKwDefaults, kDict };

void take_field(Parser&, Accessor& a, PyObject* payload) {
  std::string field = as_text(payload, "a function's field");
  a.index = field == "code"         ? kCode
            : field == "defaults"   ? kDefaults
            : field == "kwdefaults" ? kKwDefaults
            : field == "dict"       ? kDict
                                    : -1;
  if (a.index < 0) raise(PyExc_ValueError, "unknown function field '" + field + "'");
}

PyObject** function_field(PyObject* f, int64_t field) {
  auto* fn = reinterpret_cast<PyFunctionObject*>(f);
  switch (field) {
    case kCode: return &fn->func_code;
    case kDefaults: return &fn->func_defaults;
    case kKwDefaults: return &fn->func_kwdefaults;
    default: return &fn->func_dict;
  }
}

// reading

PyObject* reach_weak(Evaluator&, const Accessor& a, PyObject*) {
  if (weak_check(a.payload.get())) return weak_get(a.payload.get());
  return Py_XNewRef(weakref_target(a.payload.get()));
}

// The dict of a type, which the type keeps alive.
PyObject* type_dict(PyTypeObject* t) {
#if PY_VERSION_HEX >= 0x030C0000  // those of static types are the interpreter's
  PyObject* d = PyType_GetDict(t);
  Py_XDECREF(d);
  return d;
#else
  return t->tp_dict;
#endif
}

PyObject* reach_dict_attr(Evaluator& e, const Accessor& a, PyObject* o) {
  if (PyType_Check(o)) {
    PyObject* d = type_dict(reinterpret_cast<PyTypeObject*>(o));
    PyObject* v = d ? PyDict_GetItemWithError(d, a.payload.get()) : nullptr;
    if (d && e.record()) e.record()->dict_value(d, a.payload.get(), a.hash, v);
    return Py_XNewRef(v);
  }
  PyObject* d = e.instance_dict(o);
  return d ? Py_XNewRef(e.lookup(d, a.payload.get(), a.hash)) : nullptr;
}

PyObject* reach_dict(Evaluator& e, const Accessor&, PyObject* o) { return Py_XNewRef(e.instance_dict(o)); }

// While a guard asks a tensor, no class or mode of the program's sees it.
class Unseen {
 public:
  explicit Unseen(bool asks_tensor) : before_(State::get_disabled_state()), changed_(asks_tensor) {
    if (changed_) State::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~Unseen() {
    if (changed_) State::set_disabled_state(before_);
  }

 private:
  using State = at::impl::PythonTorchFunctionTLS;
  at::impl::TorchFunctionDisabledState before_;
  bool changed_;
};

PyObject* reach_attribute(Evaluator&, const Accessor& a, PyObject* o) {
  Unseen unseen(is_tensor(o));
  return PyObject_GetAttr(o, a.payload.get());
}

PyObject* reach_type_attr(Evaluator& e, const Accessor& a, PyObject* o) {
  PyObject* v = _PyType_Lookup(Py_TYPE(o), a.payload.get());
  if (e.record()) {
    e.record()->object_type(o);
    e.record()->type(Py_TYPE(o), a.payload.get(), v);
  }
  return Py_XNewRef(v);
}

PyObject* reach_class_attr(Evaluator& e, const Accessor& a, PyObject* o) {
  if (!PyType_Check(o)) return nullptr;
  PyObject* v = _PyType_Lookup(reinterpret_cast<PyTypeObject*>(o), a.payload.get());
  if (e.record()) e.record()->type(reinterpret_cast<PyTypeObject*>(o), a.payload.get(), v);
  return Py_XNewRef(v);
}

PyObject* reach_type(Evaluator& e, const Accessor&, PyObject* o) {
  if (e.record()) e.record()->object_type(o);
  return Py_NewRef((PyObject*)Py_TYPE(o));
}

// What a container holds, past what a subclass makes of a subscript.
PyObject* reach_item(Evaluator& e, const Accessor& a, PyObject* o) {
  bool is_list = PyList_Check(o);
  if ((is_list || PyTuple_Check(o)) && PyLong_Check(a.payload.get())) {
    if (is_list && e.record()) e.record()->sequence(o);
    Py_ssize_t n = is_list ? PyList_GET_SIZE(o) : PyTuple_GET_SIZE(o), i = a.index < 0 ? a.index + n : a.index;
    if (i < 0 || i >= n) return nullptr;
    return Py_NewRef(is_list ? PyList_GET_ITEM(o, i) : PyTuple_GET_ITEM(o, i));
  }
  if (PyDict_Check(o)) return Py_XNewRef(e.lookup(o, a.payload.get(), a.hash));
  e.volatile_read();
  Ref key = key_of(a.payload.get());
  return key ? PyObject_GetItem(o, key.get()) : nullptr;
}

PyObject* reach_cell(Evaluator& e, const Accessor&, PyObject* o) {
  if (!PyCell_Check(o)) return nullptr;
  if (e.record()) e.record()->pointer(&reinterpret_cast<PyCellObject*>(o)->ob_ref);
  return Py_XNewRef(PyCell_GET(o));
}

PyObject* reach_closure(Evaluator& e, const Accessor& a, PyObject* o) {
  if (!PyFunction_Check(o)) return nullptr;
  if (e.record()) e.record()->pointer(&reinterpret_cast<PyFunctionObject*>(o)->func_closure);
  PyObject* cells = PyFunction_GET_CLOSURE(o);
  return cells && a.index >= 0 && a.index < PyTuple_GET_SIZE(cells) ? Py_NewRef(PyTuple_GET_ITEM(cells, a.index))
                                                                    : nullptr;
}

PyObject* reach_field(Evaluator& e, const Accessor& a, PyObject* o) {
  if (!PyFunction_Check(o)) return nullptr;
  PyObject** field = function_field(o, a.index);
  if (e.record()) e.record()->pointer(field);
  return Py_NewRef(*field ? *field : Py_None);
}

PyObject* reach_grad(Evaluator&, const Accessor&, PyObject* o) { return tensor_grad(o); }

// An iterator of a builtin type reduces to (type, arguments[, state]): the arguments and the state as one tuple.
PyObject* reach_iterator_state(Evaluator&, const Accessor&, PyObject* o) {
  if (!PyIter_Check(o) || (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE)) return nullptr;
  Ref reduced = Ref::steal(PyObject_CallMethod(o, "__reduce__", nullptr));
  if (!reduced || !PyTuple_Check(reduced.get()) || PyTuple_GET_SIZE(reduced.get()) < 2) return nullptr;
  Ref state = Ref::steal(PyTuple_GetSlice(reduced.get(), 2, PyTuple_GET_SIZE(reduced.get())));
  return state ? PySequence_Concat(PyTuple_GET_ITEM(reduced.get(), 1), state.get()) : nullptr;
}

PyObject* reach_generator_state(Evaluator&, const Accessor&, PyObject* o) { return generator_state(o); }

PyObject* reach_length(Evaluator&, const Accessor&, PyObject* o) {
  Py_ssize_t n = PyObject_Size(o);
  return n < 0 ? nullptr : PyLong_FromSsize_t(n);
}

PyObject* reach_returned(Evaluator&, const Accessor&, PyObject* o) {
  PyObject* of = PyCFunction_Check(o) ? PyCFunction_GET_SELF(o) : nullptr;  // of a method in C
  Unseen unseen(of && is_tensor(of));
  return PyObject_CallNoArgs(o);
}

PyObject* reach_array_memory(Evaluator&, const Accessor& a, PyObject* o) {
  return PyObject_CallOneArg(a.payload.get(), o);
}

PyObject* reach_context_value(Evaluator&, const Accessor& a, PyObject* o) {
  PyObject* v = nullptr;
  return PyContextVar_CheckExact(o) && PyContextVar_Get(o, a.payload.get(), &v) == 0 ? v : nullptr;
}

PyObject* reach_mro(Evaluator& e, const Accessor&, PyObject* o) {
  if (!PyType_Check(o)) return nullptr;
  auto* t = reinterpret_cast<PyTypeObject*>(o);
  if (e.record()) e.record()->pointer(&t->tp_mro);
  return Py_XNewRef(t->tp_mro);
}

PyObject* reach_cache_link(Evaluator& e, const Accessor&, PyObject* o) {
  PyObject** result = cache_link_result(o);
  if (!result) return nullptr;
  if (e.record()) e.record()->pointer(result);
  return Py_XNewRef(*result);
}

PyObject* reach_wrapped(Evaluator&, const Accessor&, PyObject* o) {
  PyObject* f;
  return dispatcher_function(o, &f) ? Py_NewRef(f) : nullptr;
}

// name, role, watchable, payload, reading
const AccessorKind kAccessors[] = {
    {"local", Role::kLocal, true, take_index, nullptr},
    {"const", Role::kConst, true, nullptr, nullptr},
    {"weak", Role::kWeak, true, take_weak, reach_weak},
    {"dict_attr", Role::kStep, true, take_name, reach_dict_attr},
    {"getattr", Role::kStep, false, take_name, reach_attribute},
    {"type_attr", Role::kStep, true, take_name, reach_type_attr},
    {"class_attr", Role::kStep, true, take_name, reach_class_attr},
    {"type", Role::kStep, true, nullptr, reach_type},
    {"item", Role::kStep, true, take_key, reach_item},
    {"cell", Role::kStep, true, nullptr, reach_cell},
    {"closure", Role::kStep, true, take_index, reach_closure},
    {"function", Role::kStep, true, take_field, reach_field},
    {"dict", Role::kStep, true, nullptr, reach_dict},
    {"grad", Role::kStep, false, nullptr, reach_grad},
    {"wrapped", Role::kStep, true, nullptr, reach_wrapped},
    {"iterator_state", Role::kStep, false, nullptr, reach_iterator_state},
    {"generator_state", Role::kStep, false, nullptr, reach_generator_state},
    {"length", Role::kStep, false, nullptr, reach_length},
    {"returned", Role::kStep, false, nullptr, reach_returned},
    {"array_memory", Role::kStep, false, nullptr, reach_array_memory},
    {"context_value", Role::kStep, false, nullptr, reach_context_value},
    {"mro", Role::kStep, true, nullptr, reach_mro},
    {"cache_link", Role::kStep, true, nullptr, reach_cache_link},
};

const AccessorKind* accessor_kind(const std::string& name) {
  for (const AccessorKind& kind : kAccessors)
    if (name == kind.name) return &kind;
  return nullptr;
}

}  // namespace
}  // namespace jit
