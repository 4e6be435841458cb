// The frame evaluation hook (PEP 523): which Python frames that a break reaches through C code are served by compiled
// functions.
#pragma once

#include "common.h"

namespace jit {

// While alive, frames that this thread evaluates are offered to `region` (a Region, or null: no change). The evaluator
// is installed in the interpreter for as long as some thread is armed, so that code outside compiled regions runs as if
// there were no hook.
class Armed {
 public:
  explicit Armed(PyObject* region);
  ~Armed();
  Armed(const Armed&) = delete;
  Armed& operator=(const Armed&) = delete;

 private:
  PyObject* before_ = nullptr;
  bool active_;
};

// While alive, this thread's frames are left alone.
class Disarmed {
 public:
  Disarmed();
  ~Disarmed();
  Disarmed(const Disarmed&) = delete;
  Disarmed& operator=(const Disarmed&) = delete;

 private:
  PyObject* before_;
};

// While alive, the next frame of this code object is evaluated as it is: a dispatcher runs its original.
class PassOnce {
 public:
  explicit PassOnce(PyObject* code);
  ~PassOnce();
  PassOnce(const PassOnce&) = delete;
  PassOnce& operator=(const PassOnce&) = delete;

 private:
  PyObject* before_;
};

// Frames of this code object are never offered to a region.
void skip_code(PyObject* code);

bool region_check(PyObject* object);

// Calls what `dispatcher` has for the bound locals of a frame of `code`. False: the frame has to be evaluated; else
// *result is a new reference, or null with an error set.
bool dispatcher_serve(PyObject* dispatcher, PyObject* code, PyObject** locals, Py_ssize_t n, PyObject** result);
bool dispatcher_check(PyObject* object);

}  // namespace jit
