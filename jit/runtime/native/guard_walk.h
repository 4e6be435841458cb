// Evaluates accessors and checks, recording what is read when asked to.
#pragma once

#include "guard_facts.h"
#include "guard_records.h"

namespace jit {
namespace {

class Evaluator {
 public:
  // `watched`: values of the watched section, for accessors that refer to it. `record`: where to note what is read.
  // `base`: a snapshot of this same section, whose steady values are taken as they are.
  Evaluator(const Section& section, PyObject* const* locals, Py_ssize_t n_locals, PyObject* const* watched,
            Snapshot* record, const Snapshot* base = nullptr)
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

  // Reads these accessors before anything else: code of the program's that runs later may take away what they are
  // reached from.
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

  // What is being read cannot be watched.
  void volatile_read() { volatile_ = true; }

  // Where to note what is read, so that it is watched; null when nothing is.
  Snapshot* record() const { return record_; }

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

 private:
  // What `get` gives when it is first asked.
  PyObject* find(int32_t i) {
    if (base_ && !base_->unsteady[i]) return values_[i] = own(Py_NewRef(base_->values[i]));
    const Accessor& a = s_.accessors[i];
    Role role = a.kind->role;
    switch (role) {
      case Role::kLocal: return values_[i] = a.index < n_locals_ ? locals_[a.index] : nullptr;
      case Role::kConst: return values_[i] = a.payload.get();
      case Role::kWatched: return values_[i] = watched_ ? own(Py_NewRef(watched_[a.index])) : nullptr;
      default: break;
    }
    PyObject* parent = nullptr;
    if (role != Role::kWeak && !(parent = get(a.parent))) return nullptr;
    bool outer = volatile_;
    volatile_ = false;
    Snapshot* record = record_;
    bool passing = record && a.parent >= 0 && record->unsteady[a.parent];
    if (passing) record_ = nullptr;  // read anew on every call, and so not watched
    PyObject* o = a.kind->reach(*this, a, parent);
    record_ = record;
    if (record) record->unsteady[i] = volatile_ || passing;
    volatile_ = outer;
    if (!o) {
      PyErr_Clear();
      return nullptr;
    }
    if (role == Role::kWeak && record_ && weak_check(a.payload.get())) record_->root(a.payload.get());
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
    PyObject* o = nullptr;
    if (c.kind->of_object && !(o = get(c.accessor)) && !c.kind->of_absent) return false;
    return c.kind->holds(*this, c, o);
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
