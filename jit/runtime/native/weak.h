// References to the program's objects that do not keep them alive.
#pragma once

#include "common.h"

namespace jit {

// A reference to an object that is known by identity: a tensor, or anything that Python can refer to weakly. Null with
// a TypeError set for other objects.
PyObject* weak_new(PyObject* object);

// A reference to a tensor that may be asked for it only where the tensor is known to have been there a moment ago.
// torch.utils.swap_tensors refuses tensors with weak references of Python's or of C++; this one refers to the tensor's
// memory, and tells whether the tensor still shows that.
PyObject* weak_of_memory(PyObject* tensor);

bool weak_check(PyObject* object);

// The object, a new reference; null without an error once it is gone.
PyObject* weak_get(PyObject* weak);

// Whether `object`, which is alive, is the one that is referred to.
bool weak_is(PyObject* weak, PyObject* object);

// Of a Weak of anything but a tensor: the address of a pointer to the object, which points elsewhere once that is gone.
PyObject* const* weak_place(PyObject* weak);

// Whether the object is gone.
bool weak_gone(PyObject* weak);

}  // namespace jit
