#include "weak_object.h"

namespace jit {
namespace {

WeakObject* cast(PyObject* o) { return reinterpret_cast<WeakObject*>(o); }

// The tensor, borrowed; null once it is gone. A Python object without references is just being taken down.
PyObject* tensor_alive(WeakObject* w) {
  if (w->storage._unsafe_get_target()) return w->with_memory();
  if (w->impl.use_count() == 0) return nullptr;
  PyObject* now = w->impl._unsafe_get_target()->pyobj_slot()->load_pyobj();
  return now == w->object && Py_REFCNT(now) > 0 ? now : nullptr;
}

PyObject* alive(WeakObject* w) {
  if (!w->reference) return tensor_alive(w);
  return weakref_target(w->reference);
}

PyObject* weak_call(PyObject* o, PyObject* const*, size_t nargsf, PyObject* names) {
  if (PyVectorcall_NARGS(nargsf) || (names && PyTuple_GET_SIZE(names))) {
    PyErr_SetString(PyExc_TypeError, "a Weak takes no arguments");
    return nullptr;
  }
  PyObject* now = alive(cast(o));
  return Py_NewRef(now ? now : Py_None);
}

PyObject* weak_new_type(PyTypeObject*, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"object", nullptr};
  PyObject* object;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Weak", const_cast<char**>(names), &object)) return nullptr;
  return weak_new(object);
}

void weak_dealloc(PyObject* o) {
  auto* w = cast(o);
  Py_CLEAR(w->reference);
  w->impl.~WeakImpl();
  w->storage.~WeakStorage();
  Py_TYPE(o)->tp_free(o);
}

PyObject* weak_repr(PyObject* o) {
  PyObject* now = alive(cast(o));
  return now ? PyUnicode_FromFormat("<weak %s at %p>", Py_TYPE(now)->tp_name, now)
             : PyUnicode_FromString("<weak, gone>");
}

}  // namespace

PyTypeObject WeakType = {PyVarObject_HEAD_INIT(nullptr, 0)};

static PyObject* make(PyObject* object, bool by_memory) {
  bool tensor = is_tensor(object);
  by_memory &= tensor && THPVariable_Unpack(object).has_storage();
  Ref reference;
  if (!tensor) {
    reference = Ref::steal(PyWeakref_NewRef(object, nullptr));
    if (!reference) return nullptr;
  }
  auto* w = reinterpret_cast<WeakObject*>(WeakType.tp_alloc(&WeakType, 0));
  if (!w) return nullptr;
  w->vectorcall = weak_call;
  w->object = object;
  w->reference = reference.release();
  new (&w->storage) WeakStorage(by_memory ? THPVariable_Unpack(object).storage().getWeakStorageImpl()
                                          : WeakStorage(c10::intrusive_ptr<c10::StorageImpl>()));
  if (tensor && !by_memory) {
    new (&w->impl) WeakImpl(THPVariable_Unpack(object).getIntrusivePtr());
  } else {
    new (&w->impl) WeakImpl(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>());
  }
  return reinterpret_cast<PyObject*>(w);
}

PyObject* weak_new(PyObject* object) { return make(object, false); }

PyObject* weak_of_memory(PyObject* tensor) { return make(tensor, true); }

bool weak_check(PyObject* object) { return is_weak(object); }

PyObject* weak_get(PyObject* weak) { return Py_XNewRef(alive(cast(weak))); }

bool weak_is(PyObject* weak, PyObject* object) {
  auto* w = cast(weak);
  if (object != w->object) return false;
  if (w->storage._unsafe_get_target()) return alive(w) == object;
  return w->reference
             ? weakref_target(w->reference) == object
             : is_tensor(object) && THPVariable_Unpack(object).unsafeGetTensorImpl() == w->impl._unsafe_get_target();
}

PyObject* const* weak_place(PyObject* weak) {
  return &reinterpret_cast<PyWeakReference*>(cast(weak)->reference)->wr_object;
}

bool weak_gone(PyObject* weak) { return !alive(cast(weak)); }

bool init_weak(PyObject* module) {
  WeakType.tp_name = "jit.runtime.native.Weak";
  WeakType.tp_doc =
      "Weak(object): called, it gives the object, or None once that is gone. TypeError for what cannot be referred to "
      "weakly.";
  WeakType.tp_basicsize = sizeof(WeakObject);
  WeakType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  WeakType.tp_vectorcall_offset = offsetof(WeakObject, vectorcall);
  WeakType.tp_call = PyVectorcall_Call;
  WeakType.tp_new = weak_new_type;
  WeakType.tp_dealloc = weak_dealloc;
  WeakType.tp_repr = weak_repr;
  if (PyType_Ready(&WeakType) != 0) return false;
  return PyModule_AddObjectRef(module, "Weak", (PyObject*)&WeakType) == 0;
}

}  // namespace jit
