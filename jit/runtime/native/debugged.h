// Whether this thread is to run compiled functions in eager, so that something else sees each operation of theirs.
#pragma once

#include <c10/macros/Macros.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include "common.h"
#include "frame_hook.h"

namespace jit {

// Whether a debugger traces this thread (jit/frame/debuggers.py): it is to see the program's own frames.
inline bool is_debugged() {
  PyThreadState* ts = PyThreadState_Get();
  if (C10_LIKELY(!ts->c_tracefunc)) return false;
  static PyObject* is_debugger = nullptr;
  bool found = false;
  PyThreadState_EnterTracing(ts);  // what is asked is not traced itself
  {
    Disarmed quiet;
    if (!is_debugger) {
      Ref module = Ref::steal(PyImport_ImportModule("jit.frame.debuggers"));
      if (module) is_debugger = PyObject_GetAttrString(module.get(), "is_debugger");
    }
    Ref said = Ref::steal(is_debugger && ts->c_traceobj ? PyObject_CallOneArg(is_debugger, ts->c_traceobj) : nullptr);
    found = said.get() == Py_True;
  }
  PyErr_Clear();
  PyThreadState_LeaveTracing(ts);
  return found;
}

// With anomaly detection on, autograd is to know the line of each operation of the forward.
inline bool detects_anomalies() { return torch::autograd::AnomalyMode::is_enabled(); }

}  // namespace jit
