// Reading and writing where a generator or coroutine stands: its position, its variables and its value stack. Captured
// code follows a generator in the compiler; the real one is then put where the program would have left it. Code objects
// stay the program's own, so that a generator that was moved cannot be told from one that has run.
#include "generator_state.h"

#include "frames.h"

namespace jit {
namespace {

PyObject* empty_slot;  // stands for a variable that is unbound, or a NULL on the stack

PyTypeObject EmptyType = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyObject* empty_repr(PyObject*) { return PyUnicode_FromString("<empty slot>"); }

#if JIT_KNOWS_FRAMES

PyGenObject* as_generator(PyObject* o) {
  if (PyGen_CheckExact(o) || PyCoro_CheckExact(o)) return reinterpret_cast<PyGenObject*>(o);
  PyErr_Format(PyExc_TypeError, "a generator or coroutine is needed, not %s", Py_TYPE(o)->tp_name);
  return nullptr;
}

bool stands(PyGenObject* g) { return frames::created(g) || frames::suspended(g); }

bool suspended(PyGenObject* g) {
  if (stands(g)) return true;
  PyErr_SetString(PyExc_ValueError, frames::executing(g) ? "the generator is running" : "the generator has finished");
  return false;
}

// An iterator that goes on as a loop over a list or tuple does that has come to a position. A new reference.
PyObject* iterator_at(PyObject* sequence, Py_ssize_t position) {
  Ref iterator = Ref::steal(PyObject_GetIter(sequence));
  Ref done = iterator ? Ref::steal(PyObject_CallMethod(iterator.get(), "__setstate__", "n", position)) : Ref();
  if (done) return iterator.release();
  PyErr_Format(PyExc_ValueError, "it is in a loop over a %s that has no iterator", Py_TYPE(sequence)->tp_name);
  return nullptr;
}

// Iterators in the place of those loops' sequences, which no program can see. (Below where an exception was raised lies
// a NULL, a loop's position, a method's self or the exception handled before.)
bool without_positions(_PyInterpreterFrame* frame) {
  for (int i = 1; i < frames::used(frame); ++i) {
    PyObject* below = frames::slot(frame, i - 1);
    if (!frames::is_number(frame, i) || !below || !frames::is_looped_over(below)) continue;
    PyObject* iterator = iterator_at(below, frames::number(frame, i));
    if (!iterator) return false;
    Py_XDECREF(frames::take(frame, i - 1));
    frames::put(frame, i - 1, iterator);
    frames::put(frame, i, nullptr);
  }
  return true;
}

PyObject* read(PyObject* o) {
  PyGenObject* g = as_generator(o);
  if (!g) return nullptr;
  if (!stands(g) && !frames::executing(g)) Py_RETURN_NONE;
  if (!suspended(g)) return nullptr;
  _PyInterpreterFrame* frame = frames::frame_of(g);
  if (!without_positions(frame)) return nullptr;
  int held = frames::used(frame);
  Ref state = Ref::steal(PyTuple_New(4 + held));
  if (!state) return nullptr;
  auto* code = reinterpret_cast<PyObject*>(frames::code_of(frame));
  PyObject* handled = g->gi_exc_state.exc_value ? g->gi_exc_state.exc_value : Py_None;
  PyObject* position = PyLong_FromLong(frames::last_instruction(frame) * (long)sizeof(_Py_CODEUNIT));
  if (!position) return nullptr;
  PyTuple_SET_ITEM(state.get(), 0, Py_NewRef(code));
  PyTuple_SET_ITEM(state.get(), 1, Py_NewRef(frame->f_globals));
  PyTuple_SET_ITEM(state.get(), 2, position);
  PyTuple_SET_ITEM(state.get(), 3, Py_NewRef(handled));
  for (int i = 0; i < held; ++i) {
    PyObject* value = frames::slot(frame, i);
    PyObject* shown = frames::is_number(frame, i) ? PyLong_FromSsize_t(frames::number(frame, i))
                                                  : Py_NewRef(value ? value : empty_slot);
    if (!shown) return nullptr;
    PyTuple_SET_ITEM(state.get(), 4 + i, shown);
  }
  return state.release();
}

PyObject* py_set_state(PyObject*, PyObject* args) {
  PyObject *o, *slots, *handled, *units = nullptr;
  int position, started;
  if (!PyArg_ParseTuple(args, "OiOO!i|O!:set_generator_state", &o, &position, &handled, &PyTuple_Type, &slots, &started,
                        &PyTuple_Type, &units))
    return nullptr;
  PyGenObject* g = as_generator(o);
  if (!g || !suspended(g)) return nullptr;
  _PyInterpreterFrame* frame = frames::frame_of(g);
  PyCodeObject* code = frames::code_of(frame);
  Py_ssize_t n = PyTuple_GET_SIZE(slots), least = code->co_nlocalsplus;
  if (handled != Py_None && !PyExceptionInstance_Check(handled)) {
    PyErr_SetString(PyExc_TypeError, "what is handled has to be an exception or None");
    return nullptr;
  }
  if (n < least || n > least + code->co_stacksize || position < 0 ||
      position >= Py_SIZE(code) * (Py_ssize_t)sizeof(_Py_CODEUNIT)) {
    PyErr_SetString(PyExc_ValueError, "the state does not fit the generator's code");
    return nullptr;
  }
  // What the generator held is let go of last: finalizers may run then, and look at it.
  int held = frames::used(frame);
  Ref before = Ref::steal(PyTuple_New(held));
  if (!before) return nullptr;
  for (int i = 0; i < held; ++i) PyTuple_SET_ITEM(before.get(), i, frames::take(frame, i));
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* value = PyTuple_GET_ITEM(slots, i);
    frames::put(frame, (int)i, value == empty_slot ? nullptr : Py_NewRef(value));
  }
  for (Py_ssize_t k = 0; frames::kNumbers && units && k < PyTuple_GET_SIZE(units); ++k) {
    Py_ssize_t i = PyLong_AsSsize_t(PyTuple_GET_ITEM(units, k));
    Ref given = i >= 0 && i < n ? Ref::steal(frames::take(frame, (int)i)) : Ref();
    Py_ssize_t unit = given && PyLong_Check(given.get()) ? PyLong_AsSsize_t(given.get()) : 0;
    if (given) frames::put_number(frame, (int)i, unit);
  }
  if (PyErr_Occurred()) PyErr_Clear();
  frames::set_used(frame, (int)n);
  Ref handled_before = Ref::steal(g->gi_exc_state.exc_value);
  g->gi_exc_state.exc_value = handled == Py_None ? nullptr : Py_NewRef(handled);
  frames::set_last_instruction(frame, position / (long)sizeof(_Py_CODEUNIT));
  frames::set_state(g, started > 0, started > 1);
  Py_RETURN_NONE;
}

// ---- going on -------------------------------------------------------------------------------------------------------
// A generator's own `send` pushes what is sent. One that stands between two instructions wants nothing pushed: for the
// one call, an evaluator takes the value off again and hands the frame to the evaluator that was there. No other code
// runs between the two.

_PyFrameEvalFunction evaluator_before;
_PyInterpreterFrame* going_on;

PyObject* without_value(PyThreadState* ts, _PyInterpreterFrame* frame, int throws) {
  _PyFrameEvalFunction evaluate = evaluator_before;
  _PyInterpreterState_SetEvalFrameFunc(ts->interp, evaluate);
  if (frame == going_on) {
    int last = frames::used(frame) - 1;
    Py_XDECREF(frames::take(frame, last));
    frames::set_used(frame, last);
  }
  going_on = nullptr;
  return evaluate(ts, frame, throws);
}

PyObject* py_go_on(PyObject*, PyObject* o) {
  PyGenObject* g = as_generator(o);
  if (!g || !suspended(g)) return nullptr;
  PyInterpreterState* interpreter = PyThreadState_Get()->interp;
  evaluator_before = _PyInterpreterState_GetEvalFrameFunc(interpreter);
  going_on = frames::frame_of(g);
  _PyInterpreterState_SetEvalFrameFunc(interpreter, without_value);
  PyObject* result = nullptr;
  PySendResult how = PyIter_Send(o, Py_None, &result);
  if (going_on) {  // it was refused before it ran
    going_on = nullptr;
    _PyInterpreterState_SetEvalFrameFunc(interpreter, evaluator_before);
  }
  if (how != PYGEN_RETURN) return result;
  PyObject* end = PyObject_CallOneArg(PyExc_StopIteration, result);
  Py_DECREF(result);
  if (!end) return nullptr;
  PyErr_SetObject(PyExc_StopIteration, end);
  Py_DECREF(end);
  return nullptr;
}

#else

PyObject* not_built() {
  PyErr_SetString(PyExc_NotImplementedError, "the state of generators needs CPython's internal headers");
  return nullptr;
}

PyObject* read(PyObject*) { return not_built(); }
PyObject* py_set_state(PyObject*, PyObject*) { return not_built(); }
PyObject* py_go_on(PyObject*, PyObject*) { return not_built(); }

#endif

PyObject* py_state(PyObject*, PyObject* o) { return read(o); }

PyMethodDef methods[] = {
    {"generator_state", Entry<py_state>::call, METH_O,
     "generator_state(generator or coroutine) -> (code, globals, byte offset of the last instruction, exception being "
     "handled or None, *slots), or None\n"
     "when it has finished. The slots are the variables in the interpreter's order (cells as cells), then the stack; "
     "EMPTY_SLOT where there is nothing.\n"
     "Raises ValueError while it runs, NotImplementedError where this CPython's frames are not known."},
    {"set_generator_state", Entry<py_set_state>::call, METH_VARARGS,
     "set_generator_state(generator or coroutine, byte offset, exception being handled or None, slots, started, "
     "positions=()): puts it where a generator of its code\n"
     "stands with the instruction at the offset done, the next one to come: a yield, or any other for one that is "
     "meant for go_on; or, not started, before\n"
     "the first instruction of its body (the offset of RETURN_GENERATOR). started: 0, 1, or 2 at the yield of a `yield "
     "from` or `await`; positions: slots\n"
     "whose number says where an exception was raised (``CanonicalCode.position_slots``)."},
    {"go_on", Entry<py_go_on>::call, METH_O,
     "go_on(generator or coroutine): runs one that stands between any two instructions to its next yield, without a "
     "value sent. Raises StopIteration\n"
     "with the result when it returns."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyObject* generator_state(PyObject* object) { return read(object); }

bool init_generator_state(PyObject* module) {
  EmptyType.tp_name = "jit.runtime.native.EmptySlot";
  EmptyType.tp_doc = "The type of EMPTY_SLOT.";
  EmptyType.tp_basicsize = sizeof(PyObject);
  EmptyType.tp_flags = Py_TPFLAGS_DEFAULT;
  EmptyType.tp_repr = empty_repr;
  if (PyType_Ready(&EmptyType) != 0) return false;
  if (!empty_slot && !(empty_slot = PyObject_New(PyObject, &EmptyType))) return false;
  return PyModule_AddObjectRef(module, "EMPTY_SLOT", empty_slot) == 0 &&
         PyModule_AddIntConstant(module, "KNOWS_GENERATORS", JIT_KNOWS_FRAMES) == 0 &&
         PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace jit
