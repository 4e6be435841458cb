// Guard programs: accessors that walk from roots to objects, and checks on what they reach.
//
// Checks on locals run on every call. Facts reached from constant roots (module trees, globals, closures, classes) are
// watched: one successful walk records the version of every dict and type it has read, the contents of lists, and
// the addresses of the pointers it has followed. As long as those are unchanged the facts hold, and all that was read
// is alive, though nothing here keeps it so. A changed dict or type is first looked at for the names that were read
// (stores to others, and same-value stores, only move the recorded tag); anything else leads to a new walk.
#include "guards.h"

#include "guard_accessors.h"
#include "guard_checks.h"
#include "guard_parse.h"

namespace jit {
namespace {

struct ProgramObject {
  PyObject_HEAD
  Program* program;
  PyObject* accessors;
  PyObject* checks;
  PyObject* binds;
  PyObject* weakrefs;
};

PyTypeObject ProgramType = {PyVarObject_HEAD_INIT(nullptr, 0)};

ProgramObject* cast(PyObject* o) { return reinterpret_cast<ProgramObject*>(o); }

// The callback of weak roots; its self is a weak reference to the program.
PyObject* root_died(PyObject* program_ref, PyObject*) {
  Ref program = Ref::share(weakref_target(program_ref));
  if (program) cast(program.get())->program->release();
  Py_RETURN_NONE;
}

PyObject* without_weak_roots(PyObject* records, const Section& all) {
  Ref out = Ref::steal(checked(PyTuple_New(PyTuple_GET_SIZE(records))));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(records); ++i) {
    PyObject* record = PyTuple_GET_ITEM(records, i);
    const Accessor& a = all.accessors[i];
    bool named = PyTuple_Check(record) && PyTuple_GET_SIZE(record) > 3;
    bool kept = a.kind->role != Role::kWeak || weak_check(a.payload.get());
    PyTuple_SET_ITEM(
        out.get(), i,
        kept ? Py_NewRef(record)
             : checked(named ? Py_BuildValue("(isOO)", -1, "weak", a.payload.get(), PyTuple_GET_ITEM(record, 3))
                             : Py_BuildValue("(isO)", -1, "weak", a.payload.get())));
  }
  return out.release();
}

PyMethodDef root_died_method = {"root_died", Entry<root_died>::call, METH_O, nullptr};

PyObject* program_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"accessors", "checks", "binds", nullptr};
  PyObject *accessors, *checks, *binds = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:GuardProgram", const_cast<char**>(names), &accessors, &checks,
                                   &binds))
    return nullptr;
  try {
    Ref accessor_tuple = Ref::steal(checked(PySequence_Tuple(accessors))),
        check_tuple = Ref::steal(checked(PySequence_Tuple(checks)));
    Ref bind_tuple = Ref::steal(binds ? checked(PySequence_Tuple(binds)) : checked(PyTuple_New(0)));
    auto* self = reinterpret_cast<ProgramObject*>(type->tp_alloc(type, 0));
    Ref object = Ref::steal(checked((PyObject*)self));
    self->program = new Program();
    Ref self_ref = Ref::steal(checked(PyWeakref_NewRef(object.get(), nullptr)));
    Ref on_death = Ref::steal(checked(PyCFunction_New(&root_died_method, self_ref.get())));
    Parser parser{on_death.get()};
    Items a(accessor_tuple.get(), "accessors"), c(check_tuple.get(), "checks");
    for (Py_ssize_t i = 0; i < a.size; ++i) parser.accessor(a[i]);
    for (Py_ssize_t i = 0; i < c.size; ++i) parser.check(c[i]);
    parser.split(*self->program, bind_tuple.get());
    // Records of weak roots hold the object itself: only the reference is kept.
    self->accessors = checked(without_weak_roots(accessor_tuple.get(), self->program->all));
    self->checks = check_tuple.release();
    self->binds = bind_tuple.release();
    return object.release();
  } catch (const PythonError&) {
    return nullptr;
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
    return nullptr;
  }
}

int program_traverse(PyObject* o, visitproc visit, void* arg) {
  auto* self = cast(o);
  Py_VISIT(self->accessors);
  Py_VISIT(self->checks);
  Py_VISIT(self->binds);
  if (!self->program) return 0;
  return self->program->visit_refs([&](PyObject* p) -> int {
    Py_VISIT(p);
    return 0;
  });
}

int program_clear(PyObject* o) {
  auto* self = cast(o);
  if (Program* p = self->program) {
    p->cleared = true;
    Section all = std::move(p->all), locals = std::move(p->locals), watched = std::move(p->watched),
            mixed = std::move(p->mixed);
    std::vector<ArgumentFacts> arguments = std::move(p->arguments);
    p->arguments.clear();
    p->all = p->locals = p->watched = p->mixed = Section();
    std::shared_ptr<Snapshot> snapshot = std::move(p->snapshot);
    p->snapshot.reset();
    p->plan.reset();
  }
  Py_CLEAR(self->accessors);
  Py_CLEAR(self->checks);
  Py_CLEAR(self->binds);
  return 0;
}

void program_dealloc(PyObject* o) {
  auto* self = cast(o);
  PyObject_GC_UnTrack(o);
  if (self->weakrefs) PyObject_ClearWeakRefs(o);
  program_clear(o);
  delete self->program;
  Py_TYPE(o)->tp_free(o);
}

PyObject* program_check(PyObject* o, PyObject* locals) {
  try {
    Items items(locals, "locals");
    Ref keep = Ref::share(locals);
    return PyBool_FromLong(guards_check(o, items.data, items.size));
  } catch (const PythonError&) {
    return nullptr;
  }
}

// None, or (index of the first check that fails, True when its object was reached, that object).
PyObject* program_failure(PyObject* o, PyObject* locals) {
  try {
    Items items(locals, "locals");
    Ref keep = Ref::share(locals);
    Program* p = cast(o)->program;
    if (p->cleared) Py_RETURN_NONE;
    Evaluator e(p->all, items.data, items.size, nullptr, nullptr);
    for (const Check& c : p->all.checks) {
      if (e.check(c)) continue;
      PyObject* found = c.accessor >= 0 ? e.get(c.accessor) : nullptr;
      return Py_BuildValue("(iOO)", c.original, found ? Py_True : Py_False, found ? found : Py_None);
    }
    Py_RETURN_NONE;
  } catch (const PythonError&) {
    return nullptr;
  }
}

PyObject* program_explain(PyObject* o, PyObject* locals) {
  Ref module = Ref::steal(PyImport_ImportModule("jit.runtime.guards"));
  if (!module) return nullptr;
  return PyObject_CallMethod(module.get(), "explain", "OO", o, locals);
}

// The value of an accessor, for explanations; KeyError when it cannot be reached.
PyObject* program_value(PyObject* o, PyObject* args) {
  PyObject* locals;
  int index;
  if (!PyArg_ParseTuple(args, "Oi:value", &locals, &index)) return nullptr;
  try {
    Items items(locals, "locals");
    Program* p = cast(o)->program;
    if (index < 0 || (size_t)index >= p->all.accessors.size()) raise(PyExc_IndexError, "no such accessor");
    Evaluator e(p->all, items.data, items.size, nullptr, nullptr);
    PyObject* found = e.get(index);
    if (!found) raise(PyExc_KeyError, "accessor cannot be reached");
    return Py_NewRef(found);
  } catch (const PythonError&) {
    return nullptr;
  }
}

PyObject* program_get_stats(PyObject* o, void*) {
  Program* p = cast(o)->program;
  Snapshot* s = p->snapshot.get();
  Py_ssize_t of_arguments = 0, known = 0;
  for (const ArgumentFacts& facts : p->arguments) {
    of_arguments += (Py_ssize_t)facts.section.checks.size();
    known += (Py_ssize_t)facts.watched();
  }
  return Py_BuildValue(
      "{s:K,s:O,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n}", "walks", (unsigned long long)p->walks, "armed",
      s && s->steady ? Py_True : Py_False, "local_checks", (Py_ssize_t)p->locals.checks.size(), "argument_checks",
      of_arguments, "arguments", known, "watched_checks", (Py_ssize_t)p->watched.checks.size(), "mixed_checks",
      (Py_ssize_t)p->mixed.checks.size(), "dicts", (Py_ssize_t)(s ? s->dicts.size() : 0), "types",
      (Py_ssize_t)(s ? s->types.size() : 0), "pointers", (Py_ssize_t)(s ? s->pointer_index.size() : 0), "lists",
      (Py_ssize_t)(s ? s->sequences.size() : 0), "tensors", (Py_ssize_t)(s ? s->tensors.size() : 0));
}

PyObject* program_get_field(PyObject* o, void* which) {
  auto* self = cast(o);
  PyObject* v = which == (void*)0 ? self->accessors : which == (void*)1 ? self->checks : self->binds;
  return Py_NewRef(v ? v : Py_None);
}

PyObject* program_set_plan(PyObject* o, PyObject* plan) {
  if (!guards_set_plan(o, plan)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* cache_link_result_method(PyObject*, PyObject* link) {
  PyObject** result = cache_link_result(link);
  if (!result)
    return PyErr_Format(PyExc_TypeError, "expected an element of a functools.lru_cache, got %s",
                        Py_TYPE(link)->tp_name);
  return Py_NewRef(*result);
}

PyObject* guard_kinds(PyObject*, PyObject*) {
  Ref accessors = Ref::steal(checked(PyList_New(0))), checks = Ref::steal(checked(PyList_New(0)));
  auto append = [](PyObject* list, const char* name) {
    Ref text = Ref::steal(checked(PyUnicode_FromString(name)));
    if (PyList_Append(list, text.get()) != 0) throw PythonError();
  };
  for (const AccessorKind& kind : kAccessors) append(accessors.get(), kind.name);
  for (const CheckKind& kind : kChecks) append(checks.get(), kind.name);
  return Py_BuildValue("(OO)", accessors.get(), checks.get());
}

PyMethodDef functions[] = {
    {"guard_kinds", Entry<guard_kinds>::call, METH_NOARGS,
     "guard_kinds() -> (names of the accessors, names of the checks) that a GuardProgram takes."},
    {"cache_link_result", cache_link_result_method, METH_O,
     "cache_link_result(link) -> what an element of a bounded functools.lru_cache holds."},
    {nullptr, nullptr, 0, nullptr},
};

PyMethodDef program_methods[] = {
    {"check", Entry<program_check>::call, METH_O,
     "check(locals) -> bool: whether the program accepts a tuple of locals."},
    {"failure", Entry<program_failure>::call, METH_O,
     "failure(locals) -> None or (index of the first failing check, whether its object was reached, the object)."},
    {"explain", Entry<program_explain>::call, METH_O,
     "explain(locals) -> str: which accessor and check fails, what was expected and what was found; '' when none "
     "does."},
    {"value", Entry<program_value>::call, METH_VARARGS, "value(locals, accessor index) -> object."},
    {"set_plan", Entry<program_set_plan>::call, METH_O, "set_plan(plan): the plan whose bound inputs follow `binds`."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef program_getset[] = {
    {"accessors", program_get_field, nullptr, "The accessor records.", (void*)0},
    {"checks", program_get_field, nullptr, "The check records.", (void*)1},
    {"binds", program_get_field, nullptr, "(accessor, plan input) pairs.", (void*)2},
    {"stats", program_get_stats, nullptr, "Counters: walks made, armed or not, how much is watched.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

}  // namespace

bool guards_dead(PyObject* program) { return cast(program)->program->is_dead(); }

bool guards_is_program(PyObject* object) { return PyObject_TypeCheck(object, &ProgramType); }

bool guards_check(PyObject* program, PyObject* const* locals, Py_ssize_t n_locals) {
  try {
    return cast(program)->program->check(locals, n_locals);
  } catch (...) {  // a fact that cannot be read does not hold
    set_python_error();
    PyErr_Clear();
    return false;
  }
}

bool guards_set_plan(PyObject* program, PyObject* plan) {
  Program* p = cast(program)->program;
  if (plan != Py_None && !plan_check(plan)) {
    PyErr_SetString(PyExc_TypeError, "expected a loaded plan");
    return false;
  }
  Ref before = p->plan;
  p->plan = plan == Py_None ? Ref() : Ref::share(plan);
  std::shared_ptr<Snapshot> old = std::move(p->snapshot);  // the next check walks and binds
  p->snapshot.reset();
  return true;
}

bool init_guards(PyObject* module) {
  ProgramType.tp_name = "jit.runtime.native.GuardProgram";
  ProgramType.tp_doc = "GuardProgram(accessors, checks, binds=()): see jit/runtime/guards.py for the records.";
  ProgramType.tp_basicsize = sizeof(ProgramObject);
  ProgramType.tp_weaklistoffset = offsetof(ProgramObject, weakrefs);
  ProgramType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  ProgramType.tp_new = program_new;
  ProgramType.tp_dealloc = program_dealloc;
  ProgramType.tp_traverse = program_traverse;
  ProgramType.tp_clear = program_clear;
  ProgramType.tp_methods = program_methods;
  ProgramType.tp_getset = program_getset;
  if (PyType_Ready(&ProgramType) != 0) return false;
  return init_guard_tensor(module) && PyModule_AddFunctions(module, functions) == 0 &&
         PyModule_AddObjectRef(module, "GuardProgram", (PyObject*)&ProgramType) == 0;
}

}  // namespace jit
