// One compiled form of a function: what has to hold for it, and what is called then.
#pragma once

#include <cstddef>

#include "common.h"
#include "guards.h"

namespace jit {
namespace {

struct EntryObject {
  PyObject_HEAD
  PyObject* guards;  // a GuardProgram, or None: always matches
  PyObject* target;  // None: the original runs
  PyObject* plan;
  PyObject* region;  // what the frame hook serves while the target runs, or None
  PyObject* owner;   // a weak reference to the dispatcher that it was made for
  PyObject* trial;   // has calls timed, in eager too: see jit/frame/trial.py; mostly null
  PyObject* dict;    // free for the owner's notes
  unsigned long long hits;
};

PyTypeObject EntryType = {PyVarObject_HEAD_INIT(nullptr, 0)};

EntryObject* entry_cast(PyObject* o) { return reinterpret_cast<EntryObject*>(o); }

int entry_traverse(PyObject* o, visitproc visit, void* arg) {
  auto* e = entry_cast(o);
  Py_VISIT(e->guards);
  Py_VISIT(e->target);
  Py_VISIT(e->plan);
  Py_VISIT(e->region);
  Py_VISIT(e->trial);
  Py_VISIT(e->dict);
  return 0;
}

int entry_clear(PyObject* o) {
  auto* e = entry_cast(o);
  Py_CLEAR(e->guards);
  Py_CLEAR(e->target);
  Py_CLEAR(e->plan);
  Py_CLEAR(e->region);
  Py_CLEAR(e->owner);
  Py_CLEAR(e->trial);
  Py_CLEAR(e->dict);
  return 0;
}

void entry_dealloc(PyObject* o) {
  PyObject_GC_UnTrack(o);
  entry_clear(o);
  Py_TYPE(o)->tp_free(o);
}

PyObject* entry_repr(PyObject* o) {
  return PyUnicode_FromFormat("<jit entry: target %R, %llu hits>", entry_cast(o)->target, entry_cast(o)->hits);
}

PyObject* entry_get(PyObject* o, void* offset) {
  PyObject* v = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(o) + (size_t)offset);
  return Py_NewRef(v ? v : Py_None);
}

PyObject* entry_get_owner(PyObject* o, void*) {
  PyObject* owner = entry_cast(o)->owner ? weakref_target(entry_cast(o)->owner) : nullptr;
  return Py_NewRef(owner ? owner : Py_None);
}

PyObject* entry_get_trial(PyObject* o, void*) {
  return Py_NewRef(entry_cast(o)->trial ? entry_cast(o)->trial : Py_None);
}

int entry_set_trial(PyObject* o, PyObject* value, void*) {
  PyObject* old = entry_cast(o)->trial;
  entry_cast(o)->trial = value && value != Py_None ? Py_NewRef(value) : nullptr;
  Py_XDECREF(old);
  return 0;
}

// From now on the original runs where the guards hold, and nothing that it calls is served.
PyObject* entry_leave_to_eager(PyObject* o, PyObject*) {
  auto* e = entry_cast(o);
  Ref target = Ref::steal(e->target), region = Ref::steal(e->region);
  e->target = Py_NewRef(Py_None);
  e->region = Py_NewRef(Py_None);
  Py_RETURN_NONE;
}

// [(what, Name)]: all that the entry holds, and how each can be had in another process.
PyObject* entry_holds(PyObject* o, PyObject*) {
  Ref module = Ref::steal(PyImport_ImportModule("jit.runtime.held"));
  return module ? PyObject_CallMethod(module.get(), "holds", "O", o) : nullptr;
}

PyMethodDef entry_methods[] = {
    {"holds", Entry<entry_holds>::call, METH_NOARGS,
     "holds() -> [(what, jit.runtime.names.Name)]: all that the entry holds, by its name; see jit/runtime/held.py."},
    {"leave_to_eager", Entry<entry_leave_to_eager>::call, METH_NOARGS,
     "leave_to_eager(): the original runs from now on where the guards hold, and what it calls is not served."},
    {nullptr, nullptr, 0, nullptr},
};

PyObject* entry_get_hits(PyObject* o, void*) { return PyLong_FromUnsignedLongLong(entry_cast(o)->hits); }

PyGetSetDef entry_getset[] = {
    {"guards", entry_get, nullptr, "The guard program, or None.", (void*)offsetof(EntryObject, guards)},
    {"target", entry_get, nullptr, "What is called with the locals; None: the original runs.",
     (void*)offsetof(EntryObject, target)},
    {"region", entry_get, nullptr, "The Region whose functions the frame hook serves while the target runs, or None.",
     (void*)offsetof(EntryObject, region)},
    {"plan", entry_get, nullptr, "The plan whose bound inputs the guards keep up to date, or None.",
     (void*)offsetof(EntryObject, plan)},
    {"owner", entry_get_owner, nullptr, "The dispatcher that it was made for, or None once that is gone.", nullptr},
    {"hits", entry_get_hits, nullptr, "Calls that this entry has served.", nullptr},
    {"trial", entry_get_trial, entry_set_trial,
     "None, or an object asked before a call, begin() -> whether eager runs, or None, and told behind it, end(result).",
     nullptr},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

bool entry_matches(EntryObject* e, PyObject* const* locals, Py_ssize_t n) {
  if (!e->guards || !e->target) return false;
  if (e->guards == Py_None) return true;
  return guards_check(e->guards, locals, n);
}

bool init_entry() {
  EntryType.tp_name = "jit.runtime.native.Entry";
  EntryType.tp_basicsize = sizeof(EntryObject);
  EntryType.tp_dictoffset = offsetof(EntryObject, dict);
  EntryType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION;
  EntryType.tp_traverse = entry_traverse;
  EntryType.tp_clear = entry_clear;
  EntryType.tp_dealloc = entry_dealloc;
  EntryType.tp_repr = entry_repr;
  EntryType.tp_getset = entry_getset;
  EntryType.tp_methods = entry_methods;
  return PyType_Ready(&EntryType) == 0;
}

}  // namespace
}  // namespace jit
