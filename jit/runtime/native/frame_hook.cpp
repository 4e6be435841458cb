// The evaluator of frames under the hook. A frame whose code has a dispatcher in the armed region is served by calling
// the compiled function with the frame's locals by position; every other frame goes to CPython's own evaluator.
#include "frame_hook.h"

#include <memory>
#include <unordered_map>
#include <vector>

#include "frames.h"

namespace jit {
namespace {

// ---- regions --------------------------------------------------------------------------------------------------------

// What a region knows of one code object.
struct Callee {
  Ref code;              // keeps the address in the table
  PyObject* globals;     // of the function that it was made for, which the dispatcher keeps alive
  Ref dispatcher;        // null: frames are evaluated as they are
  bool cells, by_owner;  // takes the closure's cells before the locals; one dispatcher per first argument
  std::unordered_map<PyObject*, Ref> owners;  // the first arguments are not kept alive: see disown
};

struct RegionObject {
  PyObject_HEAD
  PyObject* decide;
  std::unordered_map<PyObject*, std::unique_ptr<Callee>>* callees;
  unsigned long long served;
};

constexpr size_t kMostCallees = 4096;

PyTypeObject RegionType = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject UnhookedType = {PyVarObject_HEAD_INIT(nullptr, 0)};

RegionObject* cast(PyObject* o) { return reinterpret_cast<RegionObject*>(o); }

thread_local PyObject* current = nullptr;      // the armed region, owned
thread_local PyObject* passed_once = nullptr;  // compared, never read
Py_ssize_t armed_threads = 0;                  // changed with the GIL held, as the interpreter's evaluator is
bool enabled = true;

#if JIT_KNOWS_FRAMES

// ---- code objects ---------------------------------------------------------------------------------------------------

#if PY_VERSION_HEX >= 0x030C0000
#define JIT_REQUEST_INDEX PyUnstable_Eval_RequestCodeExtraIndex
#define JIT_GET_EXTRA PyUnstable_Code_GetExtra
#define JIT_SET_EXTRA PyUnstable_Code_SetExtra
#else
#define JIT_REQUEST_INDEX _PyEval_RequestCodeExtraIndex
#define JIT_GET_EXTRA _PyCode_GetExtra
#define JIT_SET_EXTRA _PyCode_SetExtra
#endif

Py_ssize_t extra_index = -1;
char skip_mark, seen_mark, quiet_mark;  // their addresses are the values of the slot

bool plain_function(const PyCodeObject* code) {
  constexpr int wanted = CO_OPTIMIZED | CO_NEWLOCALS, unwanted = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;
  return (code->co_flags & wanted) == wanted && !(code->co_flags & unwanted);
}

Py_ssize_t local_count(const PyCodeObject* code) {
  return code->co_argcount + code->co_kwonlyargcount + !!(code->co_flags & CO_VARARGS) +
         !!(code->co_flags & CO_VARKEYWORDS);
}

// ---- serving --------------------------------------------------------------------------------------------------------

// decide(function, first argument or None) -> None, or (dispatcher, takes cells, one dispatcher per first argument).
bool decide(RegionObject* region, PyObject* function, PyObject* first, Ref& dispatcher, bool& cells, bool& by_owner) {
  Disarmed quiet;
  Ref ask = Ref::share(region->decide);
  if (!ask) return true;
  PyObject* args[2] = {function, first ? first : Py_None};
  Ref answer = Ref::steal(PyObject_Vectorcall(ask.get(), args, 2, nullptr));
  if (!answer) return false;
  if (answer.get() == Py_None) return true;
  PyObject* made;
  int takes_cells, owned;
  if (!PyArg_ParseTuple(answer.get(), "Opp:decide", &made, &takes_cells, &owned)) return false;
  if (!dispatcher_check(made)) {
    PyErr_SetString(PyExc_TypeError, "decide has to give a Dispatcher");
    return false;
  }
  dispatcher = Ref::share(made);
  cells = takes_cells;
  by_owner = owned;
  return true;
}

// The dispatcher for a frame, or null: the frame is evaluated. `failed`: a Python error is set.
Ref find(RegionObject* region, _PyInterpreterFrame* frame, bool& cells, bool& failed) {
  PyCodeObject* runs = frames::code_of(frame);
  PyObject* code = reinterpret_cast<PyObject*>(runs);
  PyObject* first = runs->co_argcount ? frames::slot(frame, 0) : nullptr;
  auto known = region->callees->find(code);
  Callee* callee = known == region->callees->end() ? nullptr : known->second.get();
  if (callee) {
    cells = callee->cells;
    if (callee->globals != frame->f_globals) return Ref();
    if (!callee->by_owner) return callee->dispatcher;
    auto owned = callee->owners.find(first);
    if (owned != callee->owners.end()) return owned->second;
  } else if (region->callees->size() >= kMostCallees) {
    return Ref();
  }
  Ref keep = Ref::share(code), dispatcher;
  bool by_owner = false;
  if (!decide(region, frames::function_of(frame), first, dispatcher, cells, by_owner)) {
    failed = true;
    return Ref();
  }
  if (!region->callees) return Ref();
  auto& slot = (*region->callees)[code];
  if (!slot) slot.reset(new Callee{keep, frame->f_globals, by_owner ? Ref() : dispatcher, cells, by_owner, {}});
  if (slot->by_owner && first && dispatcher) slot->owners[first] = dispatcher;
  return dispatcher;
}

// Serves the frame: true with *result (null: an error is set), or false when it has to be evaluated.
bool serve(RegionObject* region, _PyInterpreterFrame* frame, PyObject** result) {
  Ref keep = Ref::share(reinterpret_cast<PyObject*>(region));
  bool cells = false, failed = false;
  Ref dispatcher = find(region, frame, cells, failed);
  if (failed) {
    *result = nullptr;
    return true;
  }
  if (!dispatcher) return false;
  Py_ssize_t n = local_count(frames::code_of(frame));
  PyObject* closure = cells ? reinterpret_cast<PyFunctionObject*>(frames::function_of(frame))->func_closure : nullptr;
  Py_ssize_t free = closure ? PyTuple_GET_SIZE(closure) : 0;
  PyObject* few[24];
  std::vector<PyObject*> many(free + n > 24 ? free + n : 0);
  PyObject** values = many.empty() ? few : many.data();
  for (Py_ssize_t i = 0; i < free; ++i) values[i] = PyTuple_GET_ITEM(closure, i);
  for (Py_ssize_t i = 0; i < n; ++i) values[free + i] = frames::slot(frame, (int)i);
  bool done =
      dispatcher_serve(dispatcher.get(), reinterpret_cast<PyObject*>(frames::code_of(frame)), values, free + n, result);
  if (done) ++region->served;
  return done;
}

void uninstall();

PyObject* evaluate(PyThreadState* ts, _PyInterpreterFrame* frame, int throwflag) {
  if (!current) {
    if (!armed_threads) uninstall();  // another tool has put this evaluator back, which was there when it came
    return _PyEval_EvalFrameDefault(ts, frame, throwflag);
  }
  PyCodeObject* runs = frames::code_of(frame);
  PyObject* code = reinterpret_cast<PyObject*>(runs);
  void* mark = nullptr;
  JIT_GET_EXTRA(code, extra_index, &mark);
  if (throwflag || mark == &skip_mark || ts->c_tracefunc || ts->c_profilefunc)
    return _PyEval_EvalFrameDefault(ts, frame, throwflag);
  if (mark == &quiet_mark) {
    Disarmed quiet;
    return _PyEval_EvalFrameDefault(ts, frame, throwflag);
  }
  if (!mark) JIT_SET_EXTRA(code, extra_index, plain_function(runs) ? &seen_mark : &skip_mark);
  if (passed_once == code) {
    passed_once = nullptr;
    return _PyEval_EvalFrameDefault(ts, frame, throwflag);
  }
  PyObject* result = nullptr;
  bool served = false;
  if (mark || plain_function(runs)) {
    try {
      served = serve(cast(current), frame, &result);
    } catch (...) {
      result = set_python_error();
      served = true;
    }
  }
  if (!served) return _PyEval_EvalFrameDefault(ts, frame, throwflag);
  frames::leave(ts, frame);
  return result;
}

// ---- arming ---------------------------------------------------------------------------------------------------------

bool taken() {
  auto now = _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
  return now != _PyEval_EvalFrameDefault && now != evaluate;
}

void install() {
  if (!taken()) _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), evaluate);
}

void uninstall() {
  PyInterpreterState* interpreter = PyInterpreterState_Get();
  if (_PyInterpreterState_GetEvalFrameFunc(interpreter) == evaluate)
    _PyInterpreterState_SetEvalFrameFunc(interpreter, _PyEval_EvalFrameDefault);
}

// Whether a tool watches what this thread runs, so that it must see the original frames.
bool watched() {
  PyThreadState* ts = PyThreadState_Get();
  if (ts->c_tracefunc || ts->c_profilefunc) return true;
#if PY_VERSION_HEX >= 0x030C0000
  static PyObject* get_tool = nullptr;
  if (!get_tool) {
    PyObject* monitoring = PySys_GetObject("monitoring");
    get_tool = monitoring ? PyObject_GetAttrString(monitoring, "get_tool") : nullptr;
    if (!get_tool) {
      PyErr_Clear();
      return false;
    }
  }
  for (long tool = 0; tool < 3; ++tool) {  // debugger, coverage, profiler
    Ref number = Ref::steal(PyLong_FromLong(tool));
    PyObject* args[1] = {number.get()};
    Ref name = Ref::steal(PyObject_Vectorcall(get_tool, args, 1, nullptr));
    if (!name) PyErr_Clear();
    if (name && name.get() != Py_None) return true;
  }
#endif
  return false;
}

// Whether this is a greenlet other than its thread's first one. Greenlets leave in the middle of calls, so that what
// they arm would stay armed.
bool in_greenlet() {
  static PyObject* name = PyUnicode_InternFromString("greenlet");
  Ref module = Ref::steal(PyImport_GetModule(name));
  if (!module) {
    PyErr_Clear();
    return false;
  }
  Ref now = Ref::steal(PyObject_CallMethod(module.get(), "getcurrent", nullptr));
  Ref parent = now ? Ref::steal(PyObject_GetAttrString(now.get(), "parent")) : Ref();
  if (!parent) PyErr_Clear();
  return !parent || parent.get() != Py_None;
}

bool may_arm() { return enabled && !watched() && !in_greenlet(); }

void arm(PyObject* region) {
  bool was = current != nullptr, is = region != nullptr;
  current = region;
  if (is && !was && ++armed_threads == 1) install();
  if (was && !is && --armed_threads == 0) uninstall();
}

#else

bool taken() { return false; }
bool may_arm() { return false; }
void arm(PyObject*) {}

#endif

// ---- the region's type ----------------------------------------------------------------------------------------------

int region_traverse(PyObject* o, visitproc visit, void* arg) {
  Py_VISIT(cast(o)->decide);
  if (!cast(o)->callees) return 0;
  for (auto& [key, callee] : *cast(o)->callees) {
    Py_VISIT(callee->code.get());
    Py_VISIT(callee->dispatcher.get());
    for (auto& [owner, dispatcher] : callee->owners) Py_VISIT(dispatcher.get());
  }
  return 0;
}

void forget_callees(PyObject* o) {
  std::unordered_map<PyObject*, std::unique_ptr<Callee>> gone;
  if (cast(o)->callees) gone.swap(*cast(o)->callees);
}

int region_clear(PyObject* o) {
  Py_CLEAR(cast(o)->decide);
  forget_callees(o);
  return 0;
}

void region_dealloc(PyObject* o) {
  PyObject_GC_UnTrack(o);
  region_clear(o);
  delete cast(o)->callees;
  Py_TYPE(o)->tp_free(o);
}

PyObject* region_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"decide", nullptr};
  PyObject* decide;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Region", const_cast<char**>(names), &decide)) return nullptr;
  PyObject* o = type->tp_alloc(type, 0);
  if (!o) return nullptr;
  cast(o)->decide = Py_NewRef(decide);
  cast(o)->callees = new std::unordered_map<PyObject*, std::unique_ptr<Callee>>();
  return o;
}

PyObject* region_forget(PyObject* o, PyObject*) {
  forget_callees(o);
  Py_RETURN_NONE;
}

// leave_alone(code): frames of this code object are evaluated as they are from now on.
PyObject* region_leave_alone(PyObject* o, PyObject* code) {
  auto known = cast(o)->callees->find(code);
  if (known != cast(o)->callees->end()) {
    Ref gone = known->second->dispatcher;
    std::unordered_map<PyObject*, Ref> owners;
    known->second->dispatcher.reset();
    known->second->by_owner = false;
    owners.swap(known->second->owners);
  }
  Py_RETURN_NONE;
}

// disown(code, address): the object at this address, a first argument, is gone.
PyObject* region_disown(PyObject* o, PyObject* args) {
  PyObject *code, *address;
  if (!PyArg_ParseTuple(args, "OO:disown", &code, &address)) return nullptr;
  void* owner = PyLong_AsVoidPtr(address);
  if (PyErr_Occurred()) return nullptr;
  auto known = cast(o)->callees->find(code);
  if (known != cast(o)->callees->end()) {
    Ref gone;
    auto& owners = known->second->owners;
    auto at = owners.find(static_cast<PyObject*>(owner));
    if (at != owners.end()) {
      gone = at->second;
      owners.erase(at);
    }
  }
  Py_RETURN_NONE;
}

PyObject* region_served(PyObject* o, void*) { return PyLong_FromUnsignedLongLong(cast(o)->served); }

PyMethodDef region_methods[] = {
    {"forget", Entry<region_forget>::call, METH_NOARGS, "Forget all dispatchers."},
    {"leave_alone", Entry<region_leave_alone>::call, METH_O,
     "leave_alone(code): its frames are evaluated as they are from now on."},
    {"disown", Entry<region_disown>::call, METH_VARARGS,
     "disown(code, address): the first argument at this address is gone, and its dispatcher with it."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef region_getset[] = {
    {"served", region_served, nullptr, "Frames that compiled functions have run.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

// ---- calls without the hook -----------------------------------------------------------------------------------------

struct UnhookedObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* fn;
};

PyObject* unhooked_call(PyObject* o, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  Disarmed quiet;
  return PyObject_Vectorcall(reinterpret_cast<UnhookedObject*>(o)->fn, args, nargsf, kwnames);
}

PyObject* unhooked_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* fn;
  if (!PyArg_ParseTuple(args, "O:Unhooked", &fn)) return nullptr;
  PyObject* o = type->tp_alloc(type, 0);
  if (!o) return nullptr;
  reinterpret_cast<UnhookedObject*>(o)->vectorcall = Entry<unhooked_call>::call;
  reinterpret_cast<UnhookedObject*>(o)->fn = Py_NewRef(fn);
  return o;
}

int unhooked_traverse(PyObject* o, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<UnhookedObject*>(o)->fn);
  return 0;
}

int unhooked_clear(PyObject* o) {
  Py_CLEAR(reinterpret_cast<UnhookedObject*>(o)->fn);
  return 0;
}

void unhooked_dealloc(PyObject* o) {
  PyObject_GC_UnTrack(o);
  unhooked_clear(o);
  Py_TYPE(o)->tp_free(o);
}

PyObject* unhooked_get_fn(PyObject* o, void*) { return Py_NewRef(reinterpret_cast<UnhookedObject*>(o)->fn); }

PyGetSetDef unhooked_getset[] = {
    {"fn", unhooked_get_fn, nullptr, "What is called.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

// ---- functions of the module ----------------------------------------------------------------------------------------

PyObject* py_skip_code(PyObject*, PyObject* code) {
  if (!PyCode_Check(code)) {
    PyErr_SetString(PyExc_TypeError, "skip_code takes a code object");
    return nullptr;
  }
  skip_code(code);
  Py_RETURN_NONE;
}

PyObject* py_quiet_code(PyObject*, PyObject* code) {
  if (!PyCode_Check(code)) {
    PyErr_SetString(PyExc_TypeError, "quiet_code takes a code object");
    return nullptr;
  }
#if JIT_KNOWS_FRAMES
  if (JIT_SET_EXTRA(code, extra_index, &quiet_mark) != 0) return nullptr;
#endif
  Py_RETURN_NONE;
}

PyObject* py_status(PyObject*, PyObject*) {
  return PyUnicode_FromString(!JIT_KNOWS_FRAMES ? "not built"
                              : taken()         ? "taken"
                              : !enabled        ? "off"
                              : current         ? "armed"
                                                : "ready");
}

PyObject* py_enable(PyObject*, PyObject* value) {
  int on = PyObject_IsTrue(value);
  if (on < 0) return nullptr;
  enabled = on;
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"skip_code", Entry<py_skip_code>::call, METH_O, "skip_code(code): its frames are never offered to a region."},
    {"quiet_code", Entry<py_quiet_code>::call, METH_O,
     "quiet_code(code): its frames run with the hook off, and so does all that they call."},
    {"frame_hook_status", Entry<py_status>::call, METH_NOARGS,
     "'ready', 'armed' (by this thread), 'off', 'taken' (another tool has the evaluator) or 'not built'."},
    {"enable_frame_hook", Entry<py_enable>::call, METH_O, "enable_frame_hook(bool)"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

Armed::Armed(PyObject* region) : active_(region && region != Py_None && may_arm()) {
  if (!active_) return;
  before_ = current;
  arm(Py_NewRef(region));
}

Armed::~Armed() {
  if (!active_) return;
  PyObject* mine = current;
  arm(before_);
  Py_XDECREF(mine);
}

Disarmed::Disarmed() : before_(current) {
  if (before_) arm(nullptr);
}

Disarmed::~Disarmed() {
  if (before_) arm(before_);
}

PassOnce::PassOnce(PyObject* code) : before_(passed_once) { passed_once = code; }
PassOnce::~PassOnce() { passed_once = before_; }

void skip_code(PyObject* code) {
#if JIT_KNOWS_FRAMES
  if (JIT_SET_EXTRA(code, extra_index, &skip_mark) != 0) PyErr_Clear();
#endif
}

bool region_check(PyObject* object) { return Py_IS_TYPE(object, &RegionType); }

bool init_frame_hook(PyObject* module) {
#if JIT_KNOWS_FRAMES
  if (extra_index < 0) extra_index = JIT_REQUEST_INDEX(nullptr);
  if (extra_index < 0) enabled = false;
#endif
  RegionType.tp_name = "jit.runtime.native.Region";
  RegionType.tp_doc =
      "Region(decide): the dispatchers of the Python functions that compiled code reaches through C code while it is "
      "armed.";
  RegionType.tp_basicsize = sizeof(RegionObject);
  RegionType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  RegionType.tp_new = region_new;
  RegionType.tp_traverse = region_traverse;
  RegionType.tp_clear = region_clear;
  RegionType.tp_dealloc = region_dealloc;
  RegionType.tp_methods = region_methods;
  RegionType.tp_getset = region_getset;

  UnhookedType.tp_name = "jit.runtime.native.Unhooked";
  UnhookedType.tp_doc = "Unhooked(fn): calls fn with the frame evaluation hook off.";
  UnhookedType.tp_basicsize = sizeof(UnhookedObject);
  UnhookedType.tp_vectorcall_offset = offsetof(UnhookedObject, vectorcall);
  UnhookedType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  UnhookedType.tp_new = unhooked_new;
  UnhookedType.tp_call = PyVectorcall_Call;
  UnhookedType.tp_traverse = unhooked_traverse;
  UnhookedType.tp_clear = unhooked_clear;
  UnhookedType.tp_dealloc = unhooked_dealloc;
  UnhookedType.tp_getset = unhooked_getset;
  if (PyType_Ready(&RegionType) != 0 || PyType_Ready(&UnhookedType) != 0) return false;
  return PyModule_AddObjectRef(module, "Region", (PyObject*)&RegionType) == 0 &&
         PyModule_AddObjectRef(module, "Unhooked", (PyObject*)&UnhookedType) == 0 &&
         PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace jit
