// Small tools that every part of the extension shares: owned references, the module's registration functions.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace jit {

// An owned reference to a Python object (or null).
class Ref {
 public:
  Ref() = default;
  static Ref steal(PyObject* o) {
    Ref r;
    r.p_ = o;
    return r;
  }
  static Ref share(PyObject* o) {
    Py_XINCREF(o);
    return steal(o);
  }
  Ref(const Ref& o) : p_(o.p_) { Py_XINCREF(p_); }
  Ref(Ref&& o) noexcept : p_(o.p_) { o.p_ = nullptr; }
  Ref& operator=(Ref o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  ~Ref() { Py_XDECREF(p_); }
  PyObject* get() const { return p_; }
  PyObject* release() {
    PyObject* o = p_;
    p_ = nullptr;
    return o;
  }
  void reset() { Py_CLEAR(p_); }
  explicit operator bool() const { return p_ != nullptr; }

 private:
  PyObject* p_ = nullptr;
};

// What a weak reference refers to, borrowed; null once it is gone.
inline PyObject* weakref_target(PyObject* reference) {
  PyObject* o = reinterpret_cast<PyWeakReference*>(reference)->wr_object;
  return o == Py_None || Py_REFCNT(o) == 0 ? nullptr : o;
}

// Thrown when a Python error is set.
struct PythonError {};

inline PyObject* checked(PyObject* o) {
  if (!o) throw PythonError();
  return o;
}

[[noreturn]] inline void raise(PyObject* type, const std::string& text) {
  PyErr_SetString(type, text.c_str());
  throw PythonError();
}

inline int64_t as_int(PyObject* o, const char* what) {
  if (!PyLong_Check(o)) raise(PyExc_TypeError, std::string(what) + ": expected an int, got " + Py_TYPE(o)->tp_name);
  int64_t v = PyLong_AsLongLong(o);
  if (v == -1 && PyErr_Occurred()) throw PythonError();
  return v;
}

inline std::string as_text(PyObject* o, const char* what) {
  if (!PyUnicode_Check(o)) raise(PyExc_TypeError, std::string(what) + ": expected a str, got " + Py_TYPE(o)->tp_name);
  Py_ssize_t n;
  const char* s = PyUnicode_AsUTF8AndSize(o, &n);
  if (!s) throw PythonError();
  return std::string(s, n);
}

// Turns the C++ exception that is being handled into a Python error; gives null.
PyObject* set_python_error() noexcept;

// A function as CPython may call it: what it throws becomes a Python error, since no C++ exception may cross CPython's
// frames. `Entry<function>::call`.
template <auto function>
struct Entry;
template <typename... Args, PyObject* (*function)(Args...)>
struct Entry<function> {
  static PyObject* call(Args... args) noexcept {
    try {
      return function(args...);
    } catch (...) {
      return set_python_error();
    }
  }
};

// A tuple or list seen as an array of borrowed references.
struct Items {
  PyObject** data;
  Py_ssize_t size;
  Items(PyObject* o, const char* what) {
    if (!PyTuple_Check(o) && !PyList_Check(o))
      raise(PyExc_TypeError, std::string(what) + ": expected a tuple or list, got " + Py_TYPE(o)->tp_name);
    data = PySequence_Fast_ITEMS(o);
    size = PySequence_Fast_GET_SIZE(o);
  }
  PyObject* operator[](Py_ssize_t i) const {
    if (i < 0 || i >= size) raise(PyExc_ValueError, "a record of the runtime's data is too short");
    return data[i];
  }
};

// Registration, one per source file; each returns false with a Python error set.
bool init_weak(PyObject* module);
bool init_pool(PyObject* module);
bool init_plan(PyObject* module);
bool init_autograd(PyObject* module);
bool init_guards(PyObject* module);
bool init_dispatcher(PyObject* module);
bool init_undo(PyObject* module);  // after the dispatcher
bool init_frame_hook(PyObject* module);
bool init_generator_state(PyObject* module);
bool init_numbers(PyObject* module);
bool init_pieces(PyObject* module);
bool init_rounds(PyObject* module);
bool init_scratch(PyObject* module);

}  // namespace jit
