// Evaluates accessors and checks, recording what is read when asked to.
#pragma once

#include <algorithm>

#include "generator_state.h"
#include "guard_facts.h"
#include "guard_records.h"
#include "guards.h"

namespace jit {
namespace {

class Evaluator {
 public:
  // `watched`: values of the watched section, for accessors that refer to it. `record`: where to note what is read. `base`: a snapshot of this same
  // section, whose steady values are taken as they are.
  Evaluator(const Section& section, PyObject* const* locals, Py_ssize_t n_locals, PyObject* const* watched, Snapshot* record, const Snapshot* base = nullptr)
      : s_(section), locals_(locals), n_locals_(n_locals), watched_(watched), record_(record), base_(base) {
    if (record_) record_->unsteady.assign(s_.accessors.size(), 0);
    size_t n = s_.accessors.size();
    if (n <= kInline) {
      values_ = inline_values_;
    } else {
      heap_values_.reset(new PyObject*[n]);
      values_ = heap_values_.get();
    }
    std::memset(values_, 0, n * sizeof(PyObject*));
  }
  ~Evaluator() {
    for (size_t i = 0; i < n_owned_; ++i) Py_DECREF(inline_owned_[i]);
    for (PyObject* o : owned_) Py_DECREF(o);
  }

  // The object that an accessor reaches, borrowed from this evaluator; null when it cannot be reached.
  PyObject* get(int32_t i) {
    PyObject* o = values_[i];
    return o ? o : find(i);
  }

  // Reads these accessors before anything else: code of the program's that runs later may take away what they are reached from.
  template <typename Indices>
  void read(const Indices& accessors) {
    for (int32_t i : accessors) get(i);
  }

  PyObject* const* values() const { return values_; }

  bool check(const Check& c) {
    if (!record_) return holds(c);
    if ((c.accessor >= 0 && !get(c.accessor)) || (c.other >= 0 && !get(c.other))) return false;
    Snapshot* record = record_;
    bool passing = (c.accessor >= 0 && record->unsteady[c.accessor]) || (c.other >= 0 && record->unsteady[c.other]);
    if (passing) record_ = nullptr;
    volatile_ = false;
    bool ok = holds(c);
    record_ = record;
    if (ok && (volatile_ || passing)) record->every_call.push_back((int32_t)(&c - s_.checks.data()));
    return ok;
  }

 private:
  // What `get` gives when it is first asked.
  PyObject* find(int32_t i) {
    if (base_ && !base_->unsteady[i]) return values_[i] = own(Py_NewRef(base_->values[i]));
    const Accessor& a = s_.accessors[i];
    switch (a.kind) {
      case A::Local: return values_[i] = a.index < n_locals_ ? locals_[a.index] : nullptr;
      case A::Const: return values_[i] = a.payload.get();
      case A::Watched: return values_[i] = watched_ ? own(Py_NewRef(watched_[a.index])) : nullptr;
      default: break;
    }
    PyObject* parent = nullptr;
    if (a.kind != A::Weak && !(parent = get(a.parent))) return nullptr;
    bool outer = volatile_;
    volatile_ = false;
    Snapshot* record = record_;
    bool passing = record && a.parent >= 0 && record->unsteady[a.parent];
    if (passing) record_ = nullptr;  // read anew on every call, and so not watched
    PyObject* o = reach(a, parent);
    record_ = record;
    if (record) record->unsteady[i] = volatile_ || passing;
    volatile_ = outer;
    if (!o) {
      PyErr_Clear();
      return nullptr;
    }
    if (a.kind == A::Weak && record_) {
      if (weak_check(a.payload.get())) record_->root(a.payload.get());
    }
    return values_[i] = own(o);
  }

  PyObject* own(PyObject* o) {
    if (n_owned_ < kInlineOwned) {
      inline_owned_[n_owned_++] = o;
    } else {
      owned_.push_back(o);
    }
    return o;
  }

  bool holds(const Check& c) {
    switch (c.kind) {
      case C::GlobalState: return global_state_matches(*c.state);
      case C::Dims: return dims(*c.dims);
      default: break;
    }
    PyObject* o = get(c.accessor);
    if (!o) return false;
    switch (c.kind) {
      case C::TypeIs:
        if ((PyObject*)Py_TYPE(o) != c.payload.get()) return false;
        if (record_) record_->object_type(o);
        return true;
      case C::Is: return o == c.payload.get();
      case C::IsWeak: return weak_is(c.payload.get(), o);
      case C::At: return reinterpret_cast<uintptr_t>(o) == (uintptr_t)c.number && (PyObject*)Py_TYPE(o) == c.payload.get();
      case C::IsNot: return o != c.payload.get();
      case C::Eq: return const_equal(c.payload.get(), o);
      case C::Len: return length(c, o);
      case C::DictKeys: return dict_keys(c, o);
      case C::Elements: return elements(c, o);
      case C::DictLacks: return lacks(c, o);
      case C::NoDictAttr: return no_dict_attr(c, o);
      case C::TypeLacks: {
        PyObject* found = _PyType_Lookup(Py_TYPE(o), c.payload.get());
        if (found) return false;
        if (record_) {
          record_->object_type(o);
          record_->type(Py_TYPE(o), c.payload.get(), nullptr);
        }
        return true;
      }
      case C::ClassLacks: {
        if (!PyType_Check(o) || _PyType_Lookup(reinterpret_cast<PyTypeObject*>(o), c.payload.get())) return false;
        if (record_) record_->type(reinterpret_cast<PyTypeObject*>(o), c.payload.get(), nullptr);
        return true;
      }
      case C::Tensor:
        if (!tensor_matches(*c.tensor, o)) return false;
        if (record_) {
          record_->tensors.push_back(watch_tensor(o, c.tensor.get()));
        }
        return true;
      case C::Truth: return truth(o) == c.number;
      case C::Same: return o == get(c.other);
      case C::Distinct: {
        PyObject* other = get(c.other);
        return other && o != other;
      }
      case C::NoAlias: {
        PyObject* other = get(c.other);
        return other && !tensors_overlap(o, other);
      }
      case C::Apart: return apart(c);
      case C::Shares: {
        PyObject* other = get(c.other);
        return other && tensor_distance(o, other) == c.number;
      }
      case C::Room: return tensor_has_room(o, c.number, c.second);
      case C::Subclass: return subclass(c, o);
      case C::Instance: return instance(c, o);
      default: return false;
    }
  }

  // What is being read cannot be watched.
  void volatile_read() { volatile_ = true; }

  PyObject* instance_dict(PyObject* o) {
    if (PyType_Check(o)) return nullptr;
    PyObject** address = _PyObject_GetDictPtr(o);
    if (!address || !*address || !PyDict_Check(*address)) {
      // No dict yet: one may appear at any time.
      if (address && record_) record_->pointer(address, true);
      return nullptr;
    }
    if (record_) record_->pointer(address, true);
    return *address;
  }

  // `payload`: the key, see key_of.
  PyObject* lookup(PyObject* dict, PyObject* payload, Py_hash_t hash) {
    Ref owned = key_of(payload);
    PyObject* key = owned.get();
    if (!key) {
      volatile_read();
      return nullptr;
    }
    PyObject* value = hash == -1 ? PyDict_GetItemWithError(dict, key) : _PyDict_GetItem_KnownHash(dict, key, hash);
    if (!value && PyErr_Occurred()) {
      PyErr_Clear();
      volatile_read();
      return nullptr;
    }
    if (record_) {
      if (hash == -1) {
        hash = PyObject_Hash(key);
        if (hash == -1) PyErr_Clear();
      }
      record_->dict_value(dict, payload, hash, value);
    }
    return value;
  }

  // A new reference, or null (an error may be set).
  PyObject* reach(const Accessor& a, PyObject* o) {
    switch (a.kind) {
      case A::Weak: {
        if (weak_check(a.payload.get())) return weak_get(a.payload.get());
        PyObject* target = PyWeakref_GetObject(a.payload.get());
        return target == Py_None ? nullptr : Py_XNewRef(target);
      }
      case A::DictAttr: {
        if (PyType_Check(o)) {
          auto* t = reinterpret_cast<PyTypeObject*>(o);
          PyObject* v = t->tp_dict ? PyDict_GetItemWithError(t->tp_dict, a.payload.get()) : nullptr;
          if (t->tp_dict && record_) record_->dict_value(t->tp_dict, a.payload.get(), a.hash, v);
          return Py_XNewRef(v);
        }
        PyObject* d = instance_dict(o);
        return d ? Py_XNewRef(lookup(d, a.payload.get(), a.hash)) : nullptr;
      }
      case A::Dict: return Py_XNewRef(instance_dict(o));
      case A::GetAttr: volatile_read(); return PyObject_GetAttr(o, a.payload.get());
      case A::TypeAttr: {
        PyObject* v = _PyType_Lookup(Py_TYPE(o), a.payload.get());
        if (record_) {
          record_->object_type(o);
          record_->type(Py_TYPE(o), a.payload.get(), v);
        }
        return Py_XNewRef(v);
      }
      case A::ClassAttr: {
        if (!PyType_Check(o)) return nullptr;
        PyObject* v = _PyType_Lookup(reinterpret_cast<PyTypeObject*>(o), a.payload.get());
        if (record_) record_->type(reinterpret_cast<PyTypeObject*>(o), a.payload.get(), v);
        return Py_XNewRef(v);
      }
      case A::Type:
        if (record_) record_->object_type(o);
        return Py_NewRef((PyObject*)Py_TYPE(o));
      case A::Item: return item(a, o);
      case A::Cell: {
        if (!PyCell_Check(o)) return nullptr;
        if (record_) record_->pointer(&reinterpret_cast<PyCellObject*>(o)->ob_ref);
        return Py_XNewRef(PyCell_GET(o));
      }
      case A::Closure: {
        if (!PyFunction_Check(o)) return nullptr;
        if (record_) record_->pointer(&reinterpret_cast<PyFunctionObject*>(o)->func_closure);
        PyObject* cells = PyFunction_GET_CLOSURE(o);
        return cells && a.index >= 0 && a.index < PyTuple_GET_SIZE(cells) ? Py_NewRef(PyTuple_GET_ITEM(cells, a.index)) : nullptr;
      }
      case A::Function: {
        if (!PyFunction_Check(o)) return nullptr;
        PyObject** field = function_field(o, a.index);
        if (record_) record_->pointer(field);
        return Py_NewRef(*field ? *field : Py_None);
      }
      case A::Grad: volatile_read(); return tensor_grad(o);
      case A::IteratorState: {
        // An iterator of a builtin type reduces to (type, arguments[, state]): the arguments and the state as one tuple.
        volatile_read();
        if (!PyIter_Check(o) || (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE)) return nullptr;
        Ref reduced = Ref::steal(PyObject_CallMethod(o, "__reduce__", nullptr));
        if (!reduced || !PyTuple_Check(reduced.get()) || PyTuple_GET_SIZE(reduced.get()) < 2) return nullptr;
        Ref state = Ref::steal(PyTuple_GetSlice(reduced.get(), 2, PyTuple_GET_SIZE(reduced.get())));
        return state ? PySequence_Concat(PyTuple_GET_ITEM(reduced.get(), 1), state.get()) : nullptr;
      }
      case A::GeneratorState: volatile_read(); return generator_state(o);
      case A::Length: {
        volatile_read();
        Py_ssize_t n = PyObject_Size(o);
        return n < 0 ? nullptr : PyLong_FromSsize_t(n);
      }
      case A::Returned: volatile_read(); return PyObject_CallNoArgs(o);
      case A::ContextValue: {
        volatile_read();
        PyObject* v = nullptr;
        return PyContextVar_CheckExact(o) && PyContextVar_Get(o, a.payload.get(), &v) == 0 ? v : nullptr;
      }
      case A::Mro: {
        if (!PyType_Check(o)) return nullptr;
        auto* t = reinterpret_cast<PyTypeObject*>(o);
        if (record_) record_->pointer(&t->tp_mro);
        return Py_XNewRef(t->tp_mro);
      }
      case A::CacheLink: {
        PyObject** result = cache_link_result(o);
        if (!result) return nullptr;
        if (record_) record_->pointer(result);
        return Py_XNewRef(*result);
      }
      case A::Wrapped: {
        PyObject* f;
        return dispatcher_function(o, &f) ? Py_NewRef(f) : nullptr;
      }
      default: return nullptr;
    }
  }

  PyObject* item(const Accessor& a, PyObject* o) {
    // What the container holds, past what a subclass makes of a subscript.
    bool is_list = PyList_Check(o);
    if ((is_list || PyTuple_Check(o)) && PyLong_Check(a.payload.get())) {
      if (is_list && record_) record_->sequence(o);
      Py_ssize_t n = is_list ? PyList_GET_SIZE(o) : PyTuple_GET_SIZE(o), i = a.index < 0 ? a.index + n : a.index;
      if (i < 0 || i >= n) return nullptr;
      return Py_NewRef(is_list ? PyList_GET_ITEM(o, i) : PyTuple_GET_ITEM(o, i));
    }
    if (PyDict_Check(o)) return Py_XNewRef(lookup(o, a.payload.get(), a.hash));
    volatile_read();
    Ref key = key_of(a.payload.get());
    return key ? PyObject_GetItem(o, key.get()) : nullptr;
  }

  // What issubclass() says of a class. Its answer stays until the class gets other bases or an abstract class another registered one.
  bool subclass(const Check& c, PyObject* o) {
    if (!PyType_Check(o)) return false;
    int found = PyObject_IsSubclass(o, c.payload.get());
    if (found < 0) PyErr_Clear();
    if (record_) {
      record_->pointer(&reinterpret_cast<PyTypeObject*>(o)->tp_mro);
      record_->abstract_classes = abstract_class_registrations();
      record_->reads_abstract_classes = true;
    }
    return found == c.number;
  }

  // What isinstance() says of an object by whatever the class looks at.
  bool instance(const Check& c, PyObject* o) {
    volatile_read();
    int found = PyObject_IsInstance(o, c.payload.get());
    if (found < 0) PyErr_Clear();
    return found == c.number;
  }

  bool length(const Check& c, PyObject* o) {
    if (PyDict_Check(o)) {
      if (PyDict_GET_SIZE(o) != c.number) return false;
      if (record_) record_->dict_length(o);
      return true;
    }
    if (PyList_Check(o)) {
      if (record_) record_->sequence(o);
      return PyList_GET_SIZE(o) == c.number;
    }
    if (PyTuple_Check(o)) return PyTuple_GET_SIZE(o) == c.number;
    volatile_read();
    Py_ssize_t n = PyObject_Size(o);
    if (n < 0) PyErr_Clear();
    return n == c.number;
  }

  // The elements of a set, in the order of iteration.
  bool elements(const Check& c, PyObject* o) {
    if (!PyAnySet_Check(o) || PySet_GET_SIZE(o) != PyTuple_GET_SIZE(c.payload.get())) return false;
    if (!PyFrozenSet_CheckExact(o)) volatile_read();
    Ref now = contents(o, PySet_Type);
    if (!now) PyErr_Clear();
    return now && const_equal(c.payload.get(), now.get());
  }

  // A tuple of what a container of a subclass of `base` gives when it is iterated in base's way; null if that fails.
  static Ref contents(PyObject* o, PyTypeObject& base) {
    Ref steps = Ref::steal(base.tp_iter(o));
    return steps ? Ref::steal(PySequence_Tuple(steps.get())) : Ref();
  }

  bool dict_keys(const Check& c, PyObject* o) {
    if (!PyDict_Check(o)) return false;
    if (!PyODict_Check(o)) {
      if (!keys_are(o, c.payload.get())) return false;
      if (record_) record_->dict_keys(o, c.payload.get());
      return true;
    }
    if (PyTuple_GET_SIZE(c.payload.get()) == 0) {
      if (PyDict_GET_SIZE(o) != 0) return false;
      if (record_) record_->dict_length(o);
      return true;
    }
    // An OrderedDict has an order of its own, which changes without a change of the dict.
    volatile_read();
    Ref keys = contents(o, PyODict_Type);
    if (!keys) PyErr_Clear();
    return keys && const_equal(c.payload.get(), keys.get());
  }

  bool lacks(const Check& c, PyObject* o) {
    if (!PyDict_Check(o)) return false;
    return !lookup(o, c.payload.get(), c.hash);
  }

  bool no_dict_attr(const Check& c, PyObject* o) {
    if (PyType_Check(o)) return false;
    PyObject* d = instance_dict(o);
    return !d || (!record_ && PyDict_GET_SIZE(d) == 0) || !lookup(d, c.payload.get(), c.hash);
  }

  int truth(PyObject* o) {
    if (o == Py_True) return 1;
    if (o == Py_False || o == Py_None) return 0;
    if (!(PyLong_CheckExact(o) || PyUnicode_CheckExact(o) || PyFloat_CheckExact(o) || PyTuple_CheckExact(o) || PyBytes_CheckExact(o))) {
      if (PyList_CheckExact(o) && record_) {
        record_->sequence(o);
      } else if (plain_length(o) && !(Py_TYPE(o)->tp_as_number && Py_TYPE(o)->tp_as_number->nb_bool) && record_) {
        record_->dict_length(o);
      } else {
        volatile_read();
      }
    }
    int t = PyObject_IsTrue(o);
    if (t < 0) PyErr_Clear();
    return t;
  }

  // Whether no changed tensor reaches into the memory of another one: a sweep over the memory in order.
  bool apart(const Check& c) {
    struct Extent { uintptr_t begin, end; bool changed; };
    Extent inline_extents[kInline];
    std::unique_ptr<Extent[]> heap;
    if (c.group.size() > kInline) heap.reset(new Extent[c.group.size()]);
    Extent *first = heap ? heap.get() : inline_extents, *last = first;
    for (size_t i = 0; i < c.group.size(); ++i) {
      PyObject* o = get(c.group[i]);
      Extent e{0, 0, i < (size_t)c.number};
      if (!o || !tensor_extent(o, &e.begin, &e.end)) return false;
      if (e.begin != e.end) *last++ = e;
    }
    std::sort(first, last, [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    uintptr_t end = 0, changed_end = 0;
    for (const Extent* at = first; at != last; ++at) {
      const Extent& e = *at;
      if (e.begin < (e.changed ? end : changed_end)) return false;
      end = std::max(end, e.end);
      if (e.changed) changed_end = std::max(changed_end, e.end);
    }
    return true;
  }

  bool dims(const DimsCheck& d) {
    int64_t inline_values[64];
    std::vector<int64_t> heap;
    int64_t* v = inline_values;
    if (d.regs.size() > 64) {
      heap.resize(d.regs.size());
      v = heap.data();
    }
    for (size_t i = 0; i < d.regs.size(); ++i) {
      const Reg& r = d.regs[i];
      if (r.op == Reg::kConst) {
        v[i] = r.value;
      } else if (r.op == Reg::kSize || r.op == Reg::kStride) {
        PyObject* o = get(d.accessors[r.a]);
        const int64_t *sizes, *strides;
        int64_t rank;
        if (!o || !tensor_layout(o, &sizes, &strides, &rank) || r.b >= rank) return false;
        v[i] = (r.op == Reg::kSize ? sizes : strides)[r.b];
      } else if (r.op == Reg::kInt) {
        PyObject* o = get(d.accessors[r.a]);
        if (!o || !PyLong_CheckExact(o)) return false;
        v[i] = PyLong_AsLongLong(o);
        if (v[i] == -1 && PyErr_Occurred()) {
          PyErr_Clear();
          return false;
        }
      } else {
        if ((r.op == Reg::kFloorDiv || r.op == Reg::kMod) && v[r.b] == 0) return false;
        v[i] = combine(r.op, v[r.a], v[r.b]);
      }
    }
    for (auto [reg, relation] : d.conditions) {
      int64_t x = v[reg];
      bool ok = false;
      switch (relation) {
        case DimsCheck::EQ: ok = x == 0; break;
        case DimsCheck::NE: ok = x != 0; break;
        case DimsCheck::GE: ok = x >= 0; break;
        case DimsCheck::GT: ok = x > 0; break;
        case DimsCheck::LE: ok = x <= 0; break;
        case DimsCheck::LT: ok = x < 0; break;
      }
      if (!ok) return false;
    }
    return true;
  }

  static constexpr size_t kInline = 48, kInlineOwned = 16;
  const Section& s_;
  PyObject* const* locals_;
  Py_ssize_t n_locals_;
  PyObject* const* watched_;
  Snapshot* record_;
  const Snapshot* base_;
  bool volatile_ = false;
  size_t n_owned_ = 0;
  PyObject* inline_owned_[kInlineOwned];
  PyObject* inline_values_[kInline];
  std::unique_ptr<PyObject*[]> heap_values_;
  PyObject** values_;
  std::vector<PyObject*> owned_;
};

}  // namespace
}  // namespace jit
