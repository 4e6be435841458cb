// The interpreter's frames, as far as the frame hook and the state of generators need them: what runs, its variables
// and its stack, where it stands, and how it is left. All that differs between versions of CPython is here.
#pragma once

#include "common.h"

#if !defined(JIT_NO_FRAME_HOOK) && PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x03100000 && \
    !defined(Py_GIL_DISABLED) && __has_include(<internal/pycore_frame.h>)
#define JIT_KNOWS_FRAMES 1
#define Py_BUILD_CORE 1
extern "C" {
#include <internal/pycore_frame.h>
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_genobject.h>
#include <internal/pycore_interpframe.h>
#endif
#if PY_VERSION_HEX >= 0x030D0000
void _PyEval_FrameClearAndPop(PyThreadState*, _PyInterpreterFrame*);
#endif
}
#undef Py_BUILD_CORE
#else
#define JIT_KNOWS_FRAMES 0
#endif

#if JIT_KNOWS_FRAMES

namespace jit {
namespace frames {
namespace {

using Frame = _PyInterpreterFrame;

// ---- what runs ------------------------------------------------------------------------------------------------------

PyCodeObject* code_of(const Frame* f) {
#if PY_VERSION_HEX >= 0x030E0000
  return reinterpret_cast<PyCodeObject*>(PyStackRef_AsPyObjectBorrow(f->f_executable));
#elif PY_VERSION_HEX >= 0x030D0000
  return reinterpret_cast<PyCodeObject*>(f->f_executable);
#else
  return f->f_code;
#endif
}

PyObject* function_of(const Frame* f) {
#if PY_VERSION_HEX >= 0x030E0000
  return PyStackRef_AsPyObjectBorrow(f->f_funcobj);
#elif PY_VERSION_HEX >= 0x030C0000
  return f->f_funcobj;
#else
  return reinterpret_cast<PyObject*>(f->f_func);
#endif
}

// ---- variables and the stack ----------------------------------------------------------------------------------------
// Slots are numbered from the first variable on, the stack behind the variables.

#if PY_VERSION_HEX >= 0x030E0000

constexpr bool kNumbers = true;
int used(const Frame* f) { return (int)(f->stackpointer - f->localsplus); }
void set_used(Frame* f, int n) { f->stackpointer = f->localsplus + n; }

// Numbers of the interpreter's own: the code unit where an exception was raised, and the position of a loop over what
// lies in the slot below, a list or the like.
bool is_number(const Frame* f, int i) { return PyStackRef_IsTaggedInt(f->localsplus[i]); }
Py_ssize_t number(const Frame* f, int i) { return (Py_ssize_t)PyStackRef_UntagInt(f->localsplus[i]); }
void put_number(Frame* f, int i, Py_ssize_t n) { f->localsplus[i] = PyStackRef_TagInt((intptr_t)n); }

// Whether loops go over an object itself, by position, with no iterator.
bool is_looped_over(PyObject* o) {
#if PY_VERSION_HEX >= 0x030F0000
  return Py_TYPE(o)->_tp_iteritem != nullptr;
#else
  return false;
#endif
}

// What a slot holds, borrowed; null where there is nothing.
PyObject* slot(const Frame* f, int i) {
  _PyStackRef r = f->localsplus[i];
  return PyStackRef_IsNullOrInt(r) ? nullptr : PyStackRef_AsPyObjectBorrow(r);
}

// What a slot held, owned.
PyObject* take(Frame* f, int i) {
  _PyStackRef r = f->localsplus[i];
  f->localsplus[i] = PyStackRef_NULL;
  return PyStackRef_IsNullOrInt(r) ? nullptr : PyStackRef_AsPyObjectSteal(r);
}

// `o`: owned, or null.
void put(Frame* f, int i, PyObject* o) { f->localsplus[i] = o ? PyStackRef_FromPyObjectSteal(o) : PyStackRef_NULL; }

#else

constexpr bool kNumbers = false;
int used(const Frame* f) { return f->stacktop; }
void set_used(Frame* f, int n) { f->stacktop = n; }
bool is_number(const Frame*, int) { return false; }
Py_ssize_t number(const Frame*, int) { return 0; }
void put_number(Frame*, int, Py_ssize_t) {}
bool is_looped_over(PyObject*) { return false; }
PyObject* slot(const Frame* f, int i) { return f->localsplus[i]; }

PyObject* take(Frame* f, int i) {
  PyObject* o = f->localsplus[i];
  f->localsplus[i] = nullptr;
  return o;
}

void put(Frame* f, int i, PyObject* o) { f->localsplus[i] = o; }

#endif

// ---- where it stands ------------------------------------------------------------------------------------------------

// The code unit of the last instruction, of a suspended frame one without caches.
long last_instruction(const Frame* f) {
#if PY_VERSION_HEX >= 0x030D0000
  return (long)(f->instr_ptr - _PyCode_CODE(code_of(f))) - 1;
#else
  return (long)_PyInterpreterFrame_LASTI(f);
#endif
}

void set_last_instruction(Frame* f, long unit) {
#if PY_VERSION_HEX >= 0x030D0000
  f->instr_ptr = _PyCode_CODE(code_of(f)) + unit + 1;
#else
  f->prev_instr = _PyCode_CODE(code_of(f)) + unit;
#endif
}

Frame* frame_of(PyGenObject* g) { return reinterpret_cast<Frame*>(&g->gi_iframe); }

bool created(const PyGenObject* g) { return g->gi_frame_state == FRAME_CREATED; }
bool executing(const PyGenObject* g) { return g->gi_frame_state == FRAME_EXECUTING; }

bool suspended(const PyGenObject* g) {
#if PY_VERSION_HEX >= 0x030D0000
  return FRAME_STATE_SUSPENDED(g->gi_frame_state);
#else
  return g->gi_frame_state == FRAME_SUSPENDED;
#endif
}

// `delegating`: at the yield of a `yield from` or `await`.
void set_state(PyGenObject* g, bool started, bool delegating) {
#if PY_VERSION_HEX >= 0x030D0000
  g->gi_frame_state = !started ? FRAME_CREATED : delegating ? FRAME_SUSPENDED_YIELD_FROM : FRAME_SUSPENDED;
#else
  g->gi_frame_state = started ? FRAME_SUSPENDED : FRAME_CREATED;
#endif
}

// ---- leaving --------------------------------------------------------------------------------------------------------

// Lets go of what a frame that has not run holds, and gives its memory back to the thread's stack of frames. On 3.11
// whoever called does it.
void leave(PyThreadState* ts, Frame* f) {
#if PY_VERSION_HEX >= 0x030D0000
  _PyEval_FrameClearAndPop(ts, f);
#elif PY_VERSION_HEX >= 0x030C0000
  int held = f->stacktop;
  f->stacktop = 0;
  for (int i = 0; i < held; ++i) Py_XDECREF(f->localsplus[i]);
  Py_XDECREF(f->f_locals);
  Py_DECREF(f->f_funcobj);
  Py_DECREF(f->f_code);
  auto** base = reinterpret_cast<PyObject**>(f);
  _PyStackChunk* chunk = ts->datastack_chunk;
  if (base != &chunk->data[0] || !chunk->previous) {
    ts->datastack_top = base;
    return;
  }
  _PyStackChunk* below = chunk->previous;
  ts->datastack_top = &below->data[below->top];
  ts->datastack_chunk = below;
  ts->datastack_limit = reinterpret_cast<PyObject**>(reinterpret_cast<char*>(below) + below->size);
  PyObjectArenaAllocator arena;
  PyObject_GetArenaAllocator(&arena);
  arena.free(arena.ctx, chunk, chunk->size);
#endif
}

}  // namespace
}  // namespace frames
}  // namespace jit

#endif
