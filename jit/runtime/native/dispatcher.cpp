// The callable that a compiled function becomes: binds the arguments as CPython would, asks each entry's guards, calls
// the first target that they accept.
#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "common.h"
#include "debugged.h"
#include "entry.h"
#include "frame_hook.h"
#include "guards.h"
#include "ranges.h"

namespace jit {
namespace {

// Set while this thread captures: compiled functions then run their original.
thread_local bool capturing = false;
std::atomic<bool> in_eager{false};  // whether all dispatchers run their originals: see stance.py

// ---- tail calls -----------------------------------------------------------------------------------------------------

// What a target returns to have another callable go on in its place: TailCall(fn, *args). The dispatcher that called
// the target calls fn(*args) once the target's own frame is gone, so that a loop of breaks needs no deeper stack and
// leaves no frames on a traceback.
struct TailCallObject {
  PyObject_HEAD
  PyObject* fn;
  PyObject* args;
};

PyTypeObject TailCallType = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyObject* tail_call_vectorcall(PyObject*, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  Py_ssize_t n = PyVectorcall_NARGS(nargsf);
  if (n < 1 || (kwnames && PyTuple_GET_SIZE(kwnames))) {
    PyErr_SetString(PyExc_TypeError, "TailCall(fn, *args)");
    return nullptr;
  }
  Ref tuple = Ref::steal(PyTuple_New(n - 1));
  if (!tuple) return nullptr;
  for (Py_ssize_t i = 1; i < n; ++i) PyTuple_SET_ITEM(tuple.get(), i - 1, Py_NewRef(args[i]));
  PyObject* o = TailCallType.tp_alloc(&TailCallType, 0);
  if (!o) return nullptr;
  reinterpret_cast<TailCallObject*>(o)->fn = Py_NewRef(args[0]);
  reinterpret_cast<TailCallObject*>(o)->args = tuple.release();
  return o;
}

void tail_call_dealloc(PyObject* o) {
  Py_XDECREF(reinterpret_cast<TailCallObject*>(o)->fn);
  Py_XDECREF(reinterpret_cast<TailCallObject*>(o)->args);
  Py_TYPE(o)->tp_free(o);
}

// ---- the dispatcher -------------------------------------------------------------------------------------------------

struct DispatcherObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* fn;
  PyObject* on_miss;
  PyObject* bound_self;
  PyObject* entries;  // a tuple, replaced as a whole
  PyObject* dict;     // the function's own __dict__
  PyObject* weakrefs;
  PyObject* code;     // what the fields below describe
  PyObject* shown;    // null, or what profilers call it; of that code
  Py_ssize_t recent;  // index of the entry that matched last
  int argcount, posonly, kwonly;
  bool varargs, varkw, simple;
  unsigned long long hits, misses;
};

PyTypeObject DispatcherType = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject BoundDispatcherType = {PyVarObject_HEAD_INIT(nullptr, 0)};

DispatcherObject* cast(PyObject* o) { return reinterpret_cast<DispatcherObject*>(o); }

// Reads the parameters anew; entries made for another code object are dropped.
void read_code(DispatcherObject* d) {
  auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(d->fn));
  d->argcount = code->co_argcount;
  d->posonly = code->co_posonlyargcount;
  d->kwonly = code->co_kwonlyargcount;
  d->varargs = code->co_flags & CO_VARARGS;
  d->varkw = code->co_flags & CO_VARKEYWORDS;
  d->simple = !d->kwonly && !d->varargs && !d->varkw;
  PyObject* old = d->code;
  d->code = Py_NewRef((PyObject*)code);
  Py_CLEAR(d->shown);
  if (old) {
    PyObject* entries = d->entries;
    d->entries = PyTuple_New(0);
    d->recent = 0;
    Py_XDECREF(entries);
    Py_DECREF(old);
  }
}

Py_ssize_t local_count(const DispatcherObject* d) { return d->argcount + d->kwonly + d->varargs + d->varkw; }

PyObject* parameter_names(PyCodeObject* code) { return PyCode_GetVarnames(code); }

// The locals of the frame's start, in co_varnames order. Slot -1 is free for PY_VECTORCALL_ARGUMENTS_OFFSET.
struct Locals {
  static constexpr Py_ssize_t kInline = 24;
  PyObject* inline_values[kInline + 1];
  std::unique_ptr<PyObject*[]> heap;
  PyObject** values;
  Py_ssize_t n;
  explicit Locals(Py_ssize_t count) : n(count) {
    PyObject** base = inline_values;
    if (count > kInline) {
      heap.reset(new PyObject*[count + 1]);
      base = heap.get();
    }
    values = base + 1;
    std::memset(values, 0, count * sizeof(PyObject*));
  }
  ~Locals() {
    for (Py_ssize_t i = 0; i < n; ++i) Py_XDECREF(values[i]);
  }
};

// Fills `out` (owned references) as CPython's argument binding does. 1: bound; 0: the arguments do not fit (CPython has
// to say how); -1: error set.
int bind(DispatcherObject* d, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, Locals& out) {
  int positional = d->argcount, named = d->argcount + d->kwonly;
  Py_ssize_t taken = nargs < positional ? nargs : positional;
  for (Py_ssize_t i = 0; i < taken; ++i) out.values[i] = Py_NewRef(args[i]);
  int rest = named, keywords = named + d->varargs;
  if (d->varargs) {
    Py_ssize_t extra = nargs > positional ? nargs - positional : 0;
    PyObject* tuple = PyTuple_New(extra);
    if (!tuple) return -1;
    for (Py_ssize_t i = 0; i < extra; ++i) PyTuple_SET_ITEM(tuple, i, Py_NewRef(args[positional + i]));
    out.values[rest] = tuple;
  } else if (nargs > positional) {
    return 0;
  }
  if (d->varkw && !(out.values[keywords] = PyDict_New())) return -1;
  Py_ssize_t nkw = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  if (nkw) {
    Ref names = Ref::steal(parameter_names(reinterpret_cast<PyCodeObject*>(d->code)));
    if (!names) return -1;
    for (Py_ssize_t k = 0; k < nkw; ++k) {
      PyObject* name = PyTuple_GET_ITEM(kwnames, k);
      PyObject* value = args[nargs + k];
      int at = -1;
      for (int i = d->posonly; i < named; ++i)
        if (PyTuple_GET_ITEM(names.get(), i) == name) {
          at = i;
          break;
        }
      if (at < 0) {
        if (!PyUnicode_Check(name)) return 0;
        for (int i = d->posonly; i < named; ++i)
          if (PyUnicode_Compare(PyTuple_GET_ITEM(names.get(), i), name) == 0) {
            at = i;
            break;
          }
      }
      if (at < 0) {
        if (!d->varkw) return 0;
        if (PyDict_SetItem(out.values[keywords], name, value) != 0) return -1;
        continue;
      }
      if (out.values[at]) return 0;
      out.values[at] = Py_NewRef(value);
    }
  }
  if (nargs < positional) {
    Ref defaults = Ref::share(PyFunction_GET_DEFAULTS(d->fn));
    Py_ssize_t n = defaults && PyTuple_Check(defaults.get()) ? PyTuple_GET_SIZE(defaults.get()) : 0;
    for (Py_ssize_t i = nargs; i < positional; ++i) {
      if (out.values[i]) continue;
      Py_ssize_t k = i - (positional - n);
      if (k < 0) return 0;
      out.values[i] = Py_NewRef(PyTuple_GET_ITEM(defaults.get(), k));
    }
  }
  if (d->kwonly) {
    Ref defaults = Ref::share(PyFunction_GET_KW_DEFAULTS(d->fn));
    Ref names;
    for (int i = positional; i < named; ++i) {
      if (out.values[i]) continue;
      if (!defaults) return 0;
      if (!names) names = Ref::steal(parameter_names(reinterpret_cast<PyCodeObject*>(d->code)));
      if (!names) return -1;
      PyObject* v = PyDict_GetItemWithError(defaults.get(), PyTuple_GET_ITEM(names.get(), i));
      if (!v) {
        if (PyErr_Occurred()) return -1;
        return 0;
      }
      out.values[i] = Py_NewRef(v);
    }
  }
  return 1;
}

bool entry_dead(PyObject* entry) {
  PyObject* guards = entry_cast(entry)->guards;
  return !guards || (guards != Py_None && guards_dead(guards));
}

void drop_dead(DispatcherObject* d) {
  Ref live = Ref::steal(PyList_New(0));
  for (Py_ssize_t i = 0; live && i < PyTuple_GET_SIZE(d->entries); ++i) {
    PyObject* e = PyTuple_GET_ITEM(d->entries, i);
    if (!entry_dead(e) && PyList_Append(live.get(), e) != 0) live.reset();
  }
  PyObject* fresh = live ? PyList_AsTuple(live.get()) : nullptr;
  if (!fresh) {
    PyErr_Clear();
    return;
  }
  PyObject* old = d->entries;
  d->entries = fresh;
  d->recent = 0;
  Py_DECREF(old);
}

// Whether the original has to run, and what the frame hook serves meanwhile; the trial that a call is part of.
struct Original {
  bool wanted = false, alone = false;  // alone: nothing is served, whatever is armed
  Ref region, trial;
};

// What `on_miss` says of a dispatcher, a text, by a method of its; null, with no error set, where it says nothing.
PyObject* told_by_owner(DispatcherObject* d, const char* method) {
  Disarmed quiet;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* said = d->on_miss && d->on_miss != Py_None && PyObject_HasAttrString(d->on_miss, method)
                       ? PyObject_CallMethod(d->on_miss, method, "O", (PyObject*)d)
                       : nullptr;
  if (said && !PyUnicode_Check(said)) Py_CLEAR(said);
  PyErr_Restore(type, value, traceback);  // lets go of an error of the method's
  return said;
}

// What profilers call a dispatcher.
std::string shown(DispatcherObject* d) {
  if (!d->shown) d->shown = told_by_owner(d, "shown");
  const char* text = d->shown ? PyUnicode_AsUTF8(d->shown) : nullptr;
  if (!text) PyErr_Clear();
  return text ? text : "a function";
}

// Calls a target while a profiler is told.
PyObject* call_in_range(DispatcherObject* d, PyObject* target, PyObject** locals, size_t nargsf) {
  std::string name = "jit: " + shown(d);
  Watched watched;
  Range range;
  range.begin(name);
  return PyObject_Vectorcall(target, locals, nargsf, nullptr);
}

PyObject* call_target(DispatcherObject* d, EntryObject* e, PyObject** locals, Py_ssize_t n, size_t offset_flag,
                      Original& original) {
  if (e->trial) {
    Ref trial = Ref::share(e->trial), eager = Ref::steal(PyObject_CallMethod(trial.get(), "begin", nullptr));
    if (!eager) return nullptr;
    if (eager.get() != Py_None) original.trial = trial;
    if (eager.get() == Py_True) {
      original.wanted = original.alone = true;
      return nullptr;
    }
  }
  Ref target = Ref::share(e->target), region = Ref::share(e->region);
  if (target.get() == Py_None) {
    original.wanted = true;
    original.region = region;
    return nullptr;
  }
  Armed armed(region.get());
  if (C10_UNLIKELY(is_watched())) return call_in_range(d, target.get(), locals, (size_t)n | offset_flag);
  return PyObject_Vectorcall(target.get(), locals, (size_t)n | offset_flag, nullptr);
}

// Whether something is left to the interpreter where an entry serves. Such an entry, made because a fact was another
// one at each call, may hold for calls that an earlier one serves whole.
bool is_partial(PyObject* o) {
  auto* e = entry_cast(o);
  return e->target == Py_None || e->region != Py_None;
}

// The index of an entry without breaks that accepts the locals, or -1.
Py_ssize_t whole_match(PyObject* entries, PyObject** locals, Py_ssize_t n) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); ++i) {
    PyObject* o = PyTuple_GET_ITEM(entries, i);
    if (!is_partial(o) && entry_matches(entry_cast(o), locals, n)) return i;
  }
  return -1;
}

// Calls the target of the entry that accepts the locals, or what on_miss gives; null with original.wanted when the
// original has to run.
PyObject* dispatch(DispatcherObject* d, PyObject** locals, Py_ssize_t n, size_t offset_flag, Original& original) {
  Ref entries = Ref::share(d->entries);
  Py_ssize_t count = entries ? PyTuple_GET_SIZE(entries.get()) : 0;
  Py_ssize_t first = d->recent < count ? d->recent : 0;
  if (count > 1 && is_partial(PyTuple_GET_ITEM(entries.get(), first))) {
    Py_ssize_t whole = whole_match(entries.get(), locals, n);
    if (whole >= 0) first = whole;
  }
  for (Py_ssize_t k = 0; k < count; ++k) {
    Py_ssize_t i = k == 0 ? first : (k <= first ? k - 1 : k);
    auto* e = entry_cast(PyTuple_GET_ITEM(entries.get(), i));
    if (!entry_matches(e, locals, n)) continue;
    d->recent = i;
    ++d->hits;
    ++e->hits;
    Ref keep = Ref::share((PyObject*)e);
    entries.reset();
    return call_target(d, e, locals, n, offset_flag, original);
  }
  bool dead = false;
  for (Py_ssize_t k = 0; k < count; ++k) dead |= entry_dead(PyTuple_GET_ITEM(entries.get(), k));
  if (dead && d->entries == entries.get()) drop_dead(d);
  entries.reset();
  ++d->misses;
  if (!d->on_miss || d->on_miss == Py_None) {
    original.wanted = true;
    return nullptr;
  }
  Ref tuple = Ref::steal(PyTuple_New(n));
  if (!tuple) return nullptr;
  for (Py_ssize_t i = 0; i < n; ++i) PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(locals[i]));
  Ref on_miss = Ref::share(d->on_miss), target;
  {
    Disarmed quiet;
    PyObject* call[2] = {(PyObject*)d, tuple.get()};
    target = Ref::steal(PyObject_Vectorcall(on_miss.get(), call, 2, nullptr));
  }
  tuple.reset();
  if (!target) return nullptr;
  if (Py_IS_TYPE(target.get(), &EntryType))
    return call_target(d, entry_cast(target.get()), locals, n, offset_flag, original);
  if (target.get() == Py_None) {
    original.wanted = true;
    return nullptr;
  }
  return PyObject_Vectorcall(target.get(), locals, (size_t)n | offset_flag, nullptr);
}

// The frame hook leaves the original's own frame alone.
PyObject* call_original(DispatcherObject* d, const Original& original, PyObject* fn, PyObject* const* args,
                        size_t nargsf, PyObject* kwnames) {
  std::unique_ptr<Disarmed> quiet(original.alone ? new Disarmed : nullptr);
  Armed armed(original.region.get());
  PassOnce pass(d->code);
  return PyObject_Vectorcall(fn, args, nargsf, kwnames);
}

PyObject* settle(PyObject* result, PyObject* code);

// Tells the trial that a call was part of what came of it. Takes the reference to `result`.
PyObject* tried(const Original& original, PyObject* result, PyObject* code) {
  if (!original.trial) return result;
  result = settle(result, code);
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  Ref told = Ref::steal(PyObject_CallMethod(original.trial.get(), "end", "(O)", result ? result : Py_NotImplemented));
  if (!told) PyErr_WriteUnraisable(original.trial.get());
  PyErr_Restore(type, value, traceback);
  return result;
}

PyObject* call_free(DispatcherObject* d, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  Ref fn = Ref::share(d->fn);
  if (!fn) {
    PyErr_SetString(PyExc_RuntimeError, "this compiled function has been cleared by the garbage collector");
    return nullptr;
  }
  if (capturing || in_eager.load(std::memory_order_relaxed) || detects_anomalies() || is_debugged())
    return PyObject_Vectorcall(fn.get(), args, nargsf, kwnames);
  if (PyFunction_GET_CODE(fn.get()) != d->code) read_code(d);
  Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
  Original original;
  Ref self = Ref::share((PyObject*)d);
  if (d->simple && nargs == d->argcount && (!kwnames || PyTuple_GET_SIZE(kwnames) == 0)) {
    PyObject* result =
        dispatch(d, const_cast<PyObject**>(args), nargs, nargsf & PY_VECTORCALL_ARGUMENTS_OFFSET, original);
    return tried(original, original.wanted ? call_original(d, original, fn.get(), args, nargsf, kwnames) : result,
                 d->code);
  }
  Locals locals(local_count(d));
  int bound = bind(d, args, nargs, kwnames, locals);
  if (bound < 0) return nullptr;
  if (!bound) return PyObject_Vectorcall(fn.get(), args, nargsf, kwnames);
  PyObject* result = dispatch(d, locals.values, locals.n, PY_VECTORCALL_ARGUMENTS_OFFSET, original);
  return tried(original, original.wanted ? call_original(d, original, fn.get(), args, nargsf, kwnames) : result,
               d->code);
}

// The result of a target, or of the last of the calls that it has asked for. Takes the reference to `result`. A
// function that is no dispatcher is the original, with this code, which runs as it is: served once more it would only
// fail again.
PyObject* settle(PyObject* result, PyObject* code) {
  while (result && Py_IS_TYPE(result, &TailCallType)) {
    auto* call = reinterpret_cast<TailCallObject*>(result);
    Ref fn = Ref::share(call->fn), args = Ref::share(call->args);
    Py_DECREF(result);
    PyObject** items = reinterpret_cast<PyTupleObject*>(args.get())->ob_item;
    Py_ssize_t n = PyTuple_GET_SIZE(args.get());
    if (Py_IS_TYPE(fn.get(), &DispatcherType)) {
      code = cast(fn.get())->code;
      result = call_free(cast(fn.get()), items, (size_t)n, nullptr);
    } else {
      PassOnce pass(code);
      result = PyObject_Vectorcall(fn.get(), items, (size_t)n, nullptr);
    }
  }
  return result;
}

PyObject* dispatcher_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  DispatcherObject* d = cast(object);
  if (!d->bound_self) return settle(call_free(d, args, nargsf, kwnames), d->code);
  Py_ssize_t nargs = PyVectorcall_NARGS(nargsf), nkw = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  if (nargsf & PY_VECTORCALL_ARGUMENTS_OFFSET) {
    // The slot before the arguments is ours for the length of the call.
    auto** shifted = const_cast<PyObject**>(args) - 1;
    PyObject* saved = shifted[0];
    Ref self = Ref::share(d->bound_self);
    shifted[0] = self.get();
    PyObject* result = call_free(d, shifted, (size_t)nargs + 1, kwnames);
    shifted[0] = saved;
    return settle(result, d->code);
  }
  std::vector<PyObject*> all(nargs + nkw + 2);
  Ref self = Ref::share(d->bound_self);
  all[1] = self.get();
  if (nargs + nkw) std::memcpy(all.data() + 2, args, (nargs + nkw) * sizeof(PyObject*));
  return settle(call_free(d, all.data() + 1, ((size_t)nargs + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, kwnames), d->code);
}

// ---- life -----------------------------------------------------------------------------------------------------------

PyObject* dispatcher_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"fn", "on_miss", "bound_self", nullptr};
  PyObject *fn, *on_miss = Py_None, *bound_self = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|OO:Dispatcher", const_cast<char**>(names), &PyFunction_Type, &fn,
                                   &on_miss, &bound_self))
    return nullptr;
  if (type == &DispatcherType && bound_self != Py_None) type = &BoundDispatcherType;
  auto* d = reinterpret_cast<DispatcherObject*>(type->tp_alloc(type, 0));
  if (!d) return nullptr;
  Ref keep = Ref::steal((PyObject*)d);
  d->vectorcall = Entry<dispatcher_call>::call;
  d->fn = Py_NewRef(fn);
  d->on_miss = Py_NewRef(on_miss);
  if (bound_self != Py_None) d->bound_self = Py_NewRef(bound_self);
  d->entries = PyTuple_New(0);
  d->dict = PyObject_GetAttrString(fn, "__dict__");
  if (!d->entries || !d->dict) return nullptr;
  read_code(d);
  return keep.release();
}

int dispatcher_traverse(PyObject* o, visitproc visit, void* arg) {
  auto* d = cast(o);
  Py_VISIT(d->fn);
  Py_VISIT(d->on_miss);
  Py_VISIT(d->bound_self);
  Py_VISIT(d->entries);
  Py_VISIT(d->dict);
  Py_VISIT(d->code);
  return 0;
}

int dispatcher_clear(PyObject* o) {
  auto* d = cast(o);
  Py_CLEAR(d->fn);
  Py_CLEAR(d->on_miss);
  Py_CLEAR(d->bound_self);
  Py_CLEAR(d->entries);
  Py_CLEAR(d->dict);
  Py_CLEAR(d->code);
  Py_CLEAR(d->shown);
  return 0;
}

void dispatcher_dealloc(PyObject* o) {
  PyObject_GC_UnTrack(o);
  if (cast(o)->weakrefs) PyObject_ClearWeakRefs(o);
  dispatcher_clear(o);
  Py_TYPE(o)->tp_free(o);
}

PyObject* dispatcher_get(PyObject* self, PyObject* instance, PyObject*) {
  if (!instance || instance == Py_None) return Py_NewRef(self);
  return PyMethod_New(self, instance);
}

PyObject* bound_get(PyObject* self, PyObject*, PyObject*) { return Py_NewRef(self); }

PyObject* dispatcher_repr(PyObject* o) {
  auto* d = cast(o);
  if (!d->fn) return PyUnicode_FromString("<compiled function, cleared>");
  if (PyObject* told = told_by_owner(d, "told")) return told;
  Ref name = Ref::steal(PyObject_GetAttrString(d->fn, "__qualname__"));
  if (!name) return nullptr;
  if (d->bound_self) return PyUnicode_FromFormat("<compiled bound method %U of %R>", name.get(), d->bound_self);
  return PyUnicode_FromFormat("<compiled function %U at %p>", name.get(), o);
}

// Functions are pickled and copied by their qualified name; so is this.
PyObject* dispatcher_reduce(PyObject* o, PyObject*) {
  auto* d = cast(o);
  if (!d->bound_self) return PyObject_GetAttrString(d->fn, "__qualname__");
  Ref builtin = Ref::steal(PyMapping_GetItemString(PyEval_GetBuiltins(), "getattr"));
  Ref name = Ref::steal(PyObject_GetAttrString(d->fn, "__name__"));
  if (!builtin || !name) return nullptr;
  return Py_BuildValue("(O(OO))", builtin.get(), d->bound_self, name.get());
}

// ---- attributes: those of a function, read from and written to the original -----------------------------------------

PyObject* forward_get(PyObject* o, void* name) {
  auto* d = cast(o);
  if (!d->fn) {
    PyErr_SetString(PyExc_AttributeError, static_cast<const char*>(name));
    return nullptr;
  }
  return PyObject_GetAttrString(d->fn, static_cast<const char*>(name));
}

int forward_set(PyObject* o, PyObject* value, void* name) {
  return PyObject_SetAttrString(cast(o)->fn, static_cast<const char*>(name), value);
}

PyObject* get_wrapped(PyObject* o, void*) {
  auto* d = cast(o);
  return d->bound_self ? PyMethod_New(d->fn, d->bound_self) : Py_NewRef(d->fn);
}

PyObject* get_self(PyObject* o, void*) {
  auto* d = cast(o);
  if (d->bound_self) return Py_NewRef(d->bound_self);
  PyErr_SetString(PyExc_AttributeError, "__self__");
  return nullptr;
}

PyObject* get_entries(PyObject* o, void*) { return Py_NewRef(cast(o)->entries); }
PyObject* get_on_miss(PyObject* o, void*) { return Py_NewRef(cast(o)->on_miss); }
int set_on_miss(PyObject* o, PyObject* value, void*) {
  PyObject* old = cast(o)->on_miss;
  cast(o)->on_miss = Py_NewRef(value ? value : Py_None);
  Py_XDECREF(old);
  return 0;
}
PyObject* get_hits(PyObject* o, void*) { return PyLong_FromUnsignedLongLong(cast(o)->hits); }
PyObject* get_misses(PyObject* o, void*) { return PyLong_FromUnsignedLongLong(cast(o)->misses); }

PyObject* get_dict(PyObject* o, void*) { return Py_NewRef(cast(o)->dict); }
int set_dict(PyObject* o, PyObject* value, void*) {
  if (!value || !PyDict_Check(value)) {
    PyErr_SetString(PyExc_TypeError, "__dict__ must be set to a dictionary");
    return -1;
  }
  if (PyObject_SetAttrString(cast(o)->fn, "__dict__", value) != 0) return -1;
  PyObject* old = cast(o)->dict;
  cast(o)->dict = Py_NewRef(value);
  Py_XDECREF(old);
  return 0;
}

PyGetSetDef dispatcher_getset[] = {
    {"__name__", forward_get, forward_set, nullptr, (void*)"__name__"},
    {"__qualname__", forward_get, forward_set, nullptr, (void*)"__qualname__"},
    {"__doc__", forward_get, forward_set, nullptr, (void*)"__doc__"},
    {"__module__", forward_get, forward_set, nullptr, (void*)"__module__"},
    {"__defaults__", forward_get, forward_set, nullptr, (void*)"__defaults__"},
    {"__kwdefaults__", forward_get, forward_set, nullptr, (void*)"__kwdefaults__"},
    {"__code__", forward_get, forward_set, nullptr, (void*)"__code__"},
    {"__annotations__", forward_get, forward_set, nullptr, (void*)"__annotations__"},
    {"__globals__", forward_get, nullptr, nullptr, (void*)"__globals__"},
    {"__closure__", forward_get, nullptr, nullptr, (void*)"__closure__"},
    {"__type_params__", forward_get, nullptr, nullptr, (void*)"__type_params__"},
    {"__wrapped__", get_wrapped, nullptr, "The original function.", nullptr},
    {"__self__", get_self, nullptr, nullptr, nullptr},
    {"__dict__", get_dict, set_dict, nullptr, nullptr},
    {"entries", get_entries, nullptr, "The compiled entries, a tuple.", nullptr},
    {"on_miss", get_on_miss, set_on_miss,
     "on_miss(dispatcher, locals) -> an entry, a target, or None (run the original).", nullptr},
    {"hits", get_hits, nullptr, "Calls served by an entry.", nullptr},
    {"misses", get_misses, nullptr, "Calls that no entry accepted.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyObject* add_entry(PyObject* o, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"guards", "target", "plan", "region", nullptr};
  PyObject *guards, *target, *plan = Py_None, *region = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|OO:add_entry", const_cast<char**>(names), &guards, &target, &plan,
                                   &region))
    return nullptr;
  if (guards != Py_None && !guards_is_program(guards)) {
    PyErr_SetString(PyExc_TypeError, "add_entry: guards has to be a GuardProgram or None");
    return nullptr;
  }
  if (target != Py_None && !PyCallable_Check(target)) {
    PyErr_SetString(PyExc_TypeError, "add_entry: target has to be callable, or None");
    return nullptr;
  }
  if (region != Py_None && !region_check(region)) {
    PyErr_SetString(PyExc_TypeError, "add_entry: region has to be a Region or None");
    return nullptr;
  }
  if (plan != Py_None && guards != Py_None && !guards_set_plan(guards, plan)) return nullptr;
  auto* e = reinterpret_cast<EntryObject*>(EntryType.tp_alloc(&EntryType, 0));
  if (!e) return nullptr;
  Ref entry = Ref::steal((PyObject*)e);
  e->guards = Py_NewRef(guards);
  e->target = Py_NewRef(target);
  e->plan = Py_NewRef(plan);
  e->region = Py_NewRef(region);
  e->owner = PyWeakref_NewRef(o, nullptr);
  if (!e->owner) return nullptr;
  if (PyFunction_Check(target) && target != cast(o)->fn) skip_code(PyFunction_GET_CODE(target));
  auto* d = cast(o);
  Py_ssize_t n = PyTuple_GET_SIZE(d->entries);
  PyObject* longer = PyTuple_New(n + 1);
  if (!longer) return nullptr;
  for (Py_ssize_t i = 0; i < n; ++i) PyTuple_SET_ITEM(longer, i, Py_NewRef(PyTuple_GET_ITEM(d->entries, i)));
  PyTuple_SET_ITEM(longer, n, Py_NewRef(entry.get()));
  PyObject* old = d->entries;
  d->entries = longer;
  d->recent = n;
  Py_DECREF(old);
  return entry.release();
}

PyObject* replace_entries(DispatcherObject* d, PyObject* fresh) {
  if (!fresh) return nullptr;
  PyObject* old = d->entries;
  d->entries = fresh;
  d->recent = 0;
  Py_XDECREF(old);
  Py_RETURN_NONE;
}

PyObject* clear_entries(PyObject* o, PyObject*) { return replace_entries(cast(o), PyTuple_New(0)); }

PyObject* remove_entry(PyObject* o, PyObject* entry) {
  auto* d = cast(o);
  Ref list = Ref::steal(PyList_New(0));
  if (!list) return nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(d->entries); ++i) {
    PyObject* e = PyTuple_GET_ITEM(d->entries, i);
    if (e != entry && PyList_Append(list.get(), e) != 0) return nullptr;
  }
  return replace_entries(d, PyList_AsTuple(list.get()));
}

// bind(*args, **kwargs) -> the tuple of locals that guards and targets get, or None when the arguments do not fit.
PyObject* bind_method(PyObject* o, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  auto* d = cast(o);
  if (PyFunction_GET_CODE(d->fn) != d->code) read_code(d);
  std::vector<PyObject*> all;
  if (d->bound_self) {
    all.push_back(d->bound_self);
    all.insert(all.end(), args, args + nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0));
    args = all.data();
    ++nargs;
  }
  Locals locals(local_count(d));
  int bound = bind(d, args, nargs, kwnames, locals);
  if (bound < 0) return nullptr;
  if (!bound) Py_RETURN_NONE;
  PyObject* tuple = PyTuple_New(locals.n);
  if (!tuple) return nullptr;
  for (Py_ssize_t i = 0; i < locals.n; ++i) PyTuple_SET_ITEM(tuple, i, Py_NewRef(locals.values[i]));
  return tuple;
}

PyMethodDef dispatcher_methods[] = {
    {"add_entry", (PyCFunction)(void (*)(void))Entry<add_entry>::call, METH_VARARGS | METH_KEYWORDS,
     "add_entry(guards, target, plan=None, region=None) -> entry. It is tried first until another one matches."},
    {"remove_entry", Entry<remove_entry>::call, METH_O, "remove_entry(entry)"},
    {"clear", Entry<clear_entries>::call, METH_NOARGS, "Forget all entries."},
    {"bind", (PyCFunction)(void (*)(void))Entry<bind_method>::call, METH_FASTCALL | METH_KEYWORDS,
     "bind(*args, **kwargs) -> tuple of locals, or None when the arguments do not fit."},
    {"__reduce__", Entry<dispatcher_reduce>::call, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyObject* py_set_capturing(PyObject*, PyObject* value) {
  int on = PyObject_IsTrue(value);
  if (on < 0) return nullptr;
  bool before = capturing;
  capturing = on;
  return PyBool_FromLong(before);
}

PyObject* py_capturing(PyObject*, PyObject*) { return PyBool_FromLong(capturing); }

PyObject* py_set_in_eager(PyObject*, PyObject* value) {
  int on = PyObject_IsTrue(value);
  if (on < 0) return nullptr;
  return PyBool_FromLong(in_eager.exchange(on));
}

PyMethodDef methods[] = {
    {"set_in_eager", Entry<py_set_in_eager>::call, METH_O,
     "set_in_eager(bool) -> the state before: while set, all dispatchers run their original."},
    {"set_capturing", Entry<py_set_capturing>::call, METH_O,
     "set_capturing(bool) -> the state before: while set, dispatchers called on this thread run their original."},
    {"is_capturing", Entry<py_capturing>::call, METH_NOARGS, "Whether this thread is capturing."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool dispatcher_check(PyObject* object) { return Py_IS_TYPE(object, &DispatcherType); }

bool dispatcher_serve(PyObject* dispatcher, PyObject* code, PyObject** locals, Py_ssize_t n, PyObject** result) {
  Ref self = Ref::share(dispatcher);
  if (capturing || in_eager.load(std::memory_order_relaxed) || detects_anomalies() || !cast(dispatcher)->fn)
    return false;
  Original original;
  PyObject* got = dispatch(cast(dispatcher), locals, n, 0, original);
  if (original.wanted) return false;
  *result = settle(got, code);
  return true;
}

bool dispatcher_function(PyObject* f, PyObject** wrapped) {
  if (!PyObject_TypeCheck(f, &DispatcherType)) return false;
  *wrapped = cast(f)->fn;
  return *wrapped != nullptr;
}

bool init_dispatcher(PyObject* module) {
  TailCallType.tp_name = "jit.runtime.native.TailCall";
  TailCallType.tp_basicsize = sizeof(TailCallObject);
  TailCallType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION;
  TailCallType.tp_dealloc = tail_call_dealloc;
  TailCallType.tp_vectorcall = Entry<tail_call_vectorcall>::call;

  DispatcherType.tp_name = "jit.runtime.native.Dispatcher";
  DispatcherType.tp_basicsize = sizeof(DispatcherObject);
  DispatcherType.tp_dictoffset = offsetof(DispatcherObject, dict);
  DispatcherType.tp_weaklistoffset = offsetof(DispatcherObject, weakrefs);
  DispatcherType.tp_vectorcall_offset = offsetof(DispatcherObject, vectorcall);
  DispatcherType.tp_flags =
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR;
  DispatcherType.tp_new = dispatcher_new;
  DispatcherType.tp_call = PyVectorcall_Call;
  DispatcherType.tp_traverse = dispatcher_traverse;
  DispatcherType.tp_clear = dispatcher_clear;
  DispatcherType.tp_dealloc = dispatcher_dealloc;
  DispatcherType.tp_repr = dispatcher_repr;
  DispatcherType.tp_descr_get = dispatcher_get;
  DispatcherType.tp_methods = dispatcher_methods;
  DispatcherType.tp_getset = dispatcher_getset;

  BoundDispatcherType.tp_name = "jit.runtime.native.BoundDispatcher";
  BoundDispatcherType.tp_base = &DispatcherType;
  BoundDispatcherType.tp_basicsize = sizeof(DispatcherObject);
  BoundDispatcherType.tp_vectorcall_offset = offsetof(DispatcherObject, vectorcall);
  BoundDispatcherType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  BoundDispatcherType.tp_call = PyVectorcall_Call;
  BoundDispatcherType.tp_traverse = dispatcher_traverse;
  BoundDispatcherType.tp_clear = dispatcher_clear;
  BoundDispatcherType.tp_dealloc = dispatcher_dealloc;
  BoundDispatcherType.tp_new = dispatcher_new;
  BoundDispatcherType.tp_descr_get = bound_get;
  if (PyType_Ready(&TailCallType) != 0 || PyModule_AddObjectRef(module, "TailCall", (PyObject*)&TailCallType) != 0)
    return false;
  if (!init_entry() || PyType_Ready(&DispatcherType) != 0 || PyType_Ready(&BoundDispatcherType) != 0) return false;
  return PyModule_AddObjectRef(module, "Dispatcher", (PyObject*)&DispatcherType) == 0 &&
         PyModule_AddObjectRef(module, "BoundDispatcher", (PyObject*)&BoundDispatcherType) == 0 &&
         PyModule_AddObjectRef(module, "Entry", (PyObject*)&EntryType) == 0 &&
         PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace jit
