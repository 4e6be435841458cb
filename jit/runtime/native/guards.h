// What dispatchers use of guard programs.
#pragma once

#include "common.h"

namespace jit {

bool guards_is_program(PyObject* object);

// Whether the program accepts these locals. Never leaves a Python error behind.
bool guards_check(PyObject* program, PyObject* const* locals, Py_ssize_t n_locals);

// Whether the program can never match again.
bool guards_dead(PyObject* program);

// Sets the plan whose bound inputs follow the program's binds. Returns false with a Python error set.
bool guards_set_plan(PyObject* program, PyObject* plan);

// True when f is one of our dispatchers; then *wrapped is its function (borrowed). Defined by the dispatcher.
bool dispatcher_function(PyObject* f, PyObject** wrapped);

}  // namespace jit
