// Conditions on numbers: programs of numbers, see runtime/numbers.py, whose results have to be other than zero.
#pragma once

#include "common.h"

namespace jit {

bool numbers_check(PyObject* object);
// How many arguments a program takes.
int32_t numbers_arguments(PyObject* object);
// Whether each result is a number other than zero. False where Python would raise.
bool numbers_hold(PyObject* object, PyObject* const* arguments);

}  // namespace jit
