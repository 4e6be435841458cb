// The state of suspended generators and coroutines.
#pragma once

#include "common.h"

namespace jit {

// A new reference to what generator_state gives for a generator or coroutine that is not running; null with an error
// set otherwise.
PyObject* generator_state(PyObject* object);

}  // namespace jit
