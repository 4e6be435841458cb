// What a Weak is made of, for who looks at many of them on every call.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/python_variable.h>

#include "guard_tensor.h"
#include "weak.h"

namespace jit {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
using WeakImpl = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

extern PyTypeObject WeakType;

struct WeakObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* object;     // its address: not alive unless the rest says so
  PyObject* reference;  // a weak reference of Python's; null for a tensor
  WeakImpl impl;        // of a tensor
  WeakStorage storage;  // of a tensor that is told by its memory

  // Of a tensor that is told by its memory: the tensor, borrowed; null where it is gone.
  PyObject* with_memory() const {
    c10::StorageImpl* memory = storage._unsafe_get_target();
    if (storage.use_count() == 0 || Py_REFCNT(object) <= 0 ||
        !(THPVariable_CheckTypeExact(Py_TYPE(object)) || is_tensor(object)))
      return nullptr;
    return THPVariable_Unpack(object).unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() == memory
               ? object
               : nullptr;
  }
};

inline bool is_weak(PyObject* object) { return Py_IS_TYPE(object, &WeakType); }

}  // namespace jit
