// What guard programs and dispatchers use of a plan.
#pragma once

#include "common.h"

namespace jit {

bool plan_check(PyObject* object);

// Replaces pre-bound inputs: inputs[i] is bound to tensors[i]. Returns false with a Python error set.
bool plan_rebind(PyObject* plan, Py_ssize_t n, const int32_t* inputs, PyObject* const* tensors);

// Lets go of all bound inputs; the plan then wants them as arguments again.
void plan_unbind(PyObject* plan);

}  // namespace jit
