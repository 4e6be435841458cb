// What a walk over watched objects has read, and whether it still holds.
#pragma once

#include <cmath>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "guard_tensor.h"

namespace jit {
namespace {

bool float_same(double a, double b) { return a == b ? std::signbit(a) == std::signbit(b) : (a != a && b != b); }

// Exact types and equal values: -0.0 differs from 0.0, nan equals nan, True differs from 1.
bool const_equal(PyObject* want, PyObject* have) {
  if (want == have) return true;
  if (Py_TYPE(want) != Py_TYPE(have)) return false;
  if (PyUnicode_CheckExact(want)) return PyUnicode_Compare(want, have) == 0;
  if (PyBool_Check(want) || want == Py_None || want == Py_Ellipsis || PyType_Check(want) || PyModule_Check(want) || PyFunction_Check(want)) return false;
  if (PyFloat_CheckExact(want)) return float_same(PyFloat_AS_DOUBLE(want), PyFloat_AS_DOUBLE(have));
  if (PyComplex_CheckExact(want)) {
    Py_complex a = PyComplex_AsCComplex(want), b = PyComplex_AsCComplex(have);
    return float_same(a.real, b.real) && float_same(a.imag, b.imag);
  }
  if (PyTuple_Check(want)) {
    if (PyTuple_GET_SIZE(want) != PyTuple_GET_SIZE(have)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(want); ++i)
      if (!const_equal(PyTuple_GET_ITEM(want, i), PyTuple_GET_ITEM(have, i))) return false;
    return true;
  }
  if (PySlice_Check(want)) {
    auto *a = reinterpret_cast<PySliceObject*>(want), *b = reinterpret_cast<PySliceObject*>(have);
    return const_equal(a->start, b->start) && const_equal(a->stop, b->stop) && const_equal(a->step, b->step);
  }
  if (PyFrozenSet_CheckExact(want)) {
    // Equality of sets takes True for 1: compare the sets of (type, element).
    if (PySet_GET_SIZE(want) != PySet_GET_SIZE(have)) return false;
    auto typed = [](PyObject* set) {
      Ref out = Ref::steal(PySet_New(nullptr)), it = Ref::steal(PyObject_GetIter(set));
      while (out && it) {
        Ref item = Ref::steal(PyIter_Next(it.get()));
        if (!item) break;
        Ref pair = Ref::steal(PyTuple_Pack(2, Py_TYPE(item.get()), item.get()));
        if (!pair || PySet_Add(out.get(), pair.get()) != 0) return Ref();
      }
      return out;
    };
    Ref a = typed(want), b = typed(have);
    int same = a && b ? PyObject_RichCompareBool(a.get(), b.get(), Py_EQ) : -1;
    if (same < 0) PyErr_Clear();
    return same > 0;
  }
  int same = PyObject_RichCompareBool(want, have, Py_EQ);
  if (same < 0) PyErr_Clear();
  return same > 0;
}

bool keys_are(PyObject* dict, PyObject* keys) {
  if (PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(keys)) return false;
  PyObject *key, *value;
  Py_ssize_t at = 0, i = 0;
  while (PyDict_Next(dict, &at, &key, &value)) {
    if (i >= PyTuple_GET_SIZE(keys)) return false;
    PyObject* want = PyTuple_GET_ITEM(keys, i++);
    if (key != want && !const_equal(want, key)) return false;
  }
  return i == PyTuple_GET_SIZE(keys);
}

// len(d) is dict's own.
bool plain_length(PyObject* o) { return PyDict_Check(o) && Py_TYPE(o)->tp_as_mapping->mp_length == PyDict_Type.tp_as_mapping->mp_length; }

uint64_t dict_tag(PyObject* d) {
  uint64_t tag = reinterpret_cast<PyDictObject*>(d)->ma_version_tag;
#if PY_VERSION_HEX >= 0x030C0000
  tag >>= 8;  // the low byte says which watchers are installed
#endif
  return tag;
}

unsigned type_tag(PyTypeObject* t) { return t->tp_version_tag; }

// How often a class has been registered with an abstract class so far (``abc.get_cache_token()``); -1 where that cannot be told.
int64_t abstract_class_registrations() {
  static PyObject* ask = [] {
    Ref module = Ref::steal(PyImport_ImportModule("_abc"));
    PyObject* f = module ? PyObject_GetAttrString(module.get(), "get_cache_token") : nullptr;
    if (!f) PyErr_Clear();
    return f;
  }();
  Ref token = ask ? Ref::steal(PyObject_CallNoArgs(ask)) : Ref();
  int64_t n = token ? (int64_t)PyLong_AsUnsignedLongLongMask(token.get()) : -1;
  if (PyErr_Occurred()) PyErr_Clear();
  return n;
}

// Where an element of a functools.lru_cache with a bound keeps its result; null for any other object.
PyObject** cache_link_result(PyObject* o) {
  struct Link {  // lru_list_elem in CPython's Modules/_functoolsmodule.c
    PyObject_HEAD
    Link *before, *after;
    Py_hash_t hash;
    PyObject *key, *result;
  };
  bool fits = std::strcmp(Py_TYPE(o)->tp_name, "functools._lru_list_elem") == 0 && Py_TYPE(o)->tp_basicsize == sizeof(Link);
  return fits ? &reinterpret_cast<Link*>(o)->result : nullptr;
}

struct DictFact {
  enum Kind : uint8_t { kValue, kLength, kKeys } kind;
  Ref key;         // of kValue; the tuple of kKeys
  Py_hash_t hash;
  PyObject* value;  // kept alive by the snapshot; null when the key was absent
  Py_ssize_t length;
};

struct Snapshot {
  struct DictWatch { PyObject* dict; uint64_t tag; };
  struct TypeWatch { PyTypeObject* type; unsigned tag; };
  struct PointerWatch { PyObject** address; PyObject* expected; };
  struct ListWatch { PyListObject* list; std::vector<PyObject*> items; };
  struct TypeFact { Ref name; PyObject* value; };

  std::vector<DictWatch> dicts;
  std::vector<TypeWatch> types;
  std::vector<PointerWatch> pointers;
  std::vector<ListWatch> lists;
  std::vector<TensorWatch> tensors;
  std::vector<std::vector<DictFact>> dict_facts;   // parallel to dicts
  std::vector<std::vector<TypeFact>> type_facts;   // parallel to types
  std::unordered_map<PyObject*, size_t> dict_index, type_index, list_index;
  std::unordered_set<PyObject**> pointer_index;
  std::vector<Ref> keep;                           // owners of every address above
  std::vector<PyObject*> values;                   // per accessor of the watched section, or null; kept alive too
  std::vector<PyObject*> loose;                    // weak roots: not kept alive
  // What cannot be watched is read anew on every call: these accessors of the watched section, and these of its checks.
  std::vector<uint8_t> unsteady;
  std::vector<int32_t> every_call;
  bool reads_abstract_classes = false;
  int64_t abstract_classes = 0;                    // registrations at the time
  bool steady = true;                              // false when others depend on an unsteady accessor: each call walks
  bool dead = false;                               // a weak root has died: addresses inside it are gone

  void hold(PyObject* o) {
    for (PyObject* l : loose)
      if (o == l) return;
    keep.push_back(Ref::share(o));
  }

  std::vector<DictFact>& dict(PyObject* d) {
    auto [it, fresh] = dict_index.try_emplace(d, dicts.size());
    if (fresh) {
      hold(d);
      dicts.push_back({d, dict_tag(d)});
      dict_facts.emplace_back();
    }
    return dict_facts[it->second];
  }

  void dict_value(PyObject* d, PyObject* key, Py_hash_t hash, PyObject* value) {
    if (value) hold(value);
    dict(d).push_back({DictFact::kValue, Ref::share(key), hash, value, 0});
  }

  // A lookup of `name` along the type's MRO. The tag has just been assigned by the lookup itself, if it could be.
  void type(PyTypeObject* t, PyObject* name, PyObject* value) {
    if (!(t->tp_flags & Py_TPFLAGS_HEAPTYPE)) return;  // cannot change
    auto [it, fresh] = type_index.try_emplace((PyObject*)t, types.size());
    if (fresh) {
      hold((PyObject*)t);
      types.push_back({t, type_tag(t)});
      type_facts.emplace_back();
    }
    if (value) hold(value);
    type_facts[it->second].push_back({Ref::share(name), value});
  }

  void pointer(PyObject* owner, PyObject** address) {
    if (!pointer_index.insert(address).second) return;
    hold(owner);
    if (*address) hold(*address);
    pointers.push_back({address, *address});
  }

  void object_type(PyObject* o) { pointer(o, reinterpret_cast<PyObject**>(&o->ob_type)); }

  void list(PyObject* l) {
    auto [it, fresh] = list_index.try_emplace(l, lists.size());
    if (!fresh) return;
    hold(l);
    ListWatch w{reinterpret_cast<PyListObject*>(l), {}};
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(l); ++i) {
      w.items.push_back(PyList_GET_ITEM(l, i));
      hold(w.items.back());
    }
    lists.push_back(std::move(w));
  }

  // Whether everything read is as it was. Dicts and types whose relevant names are unchanged get their new tag. May run Python code
  // (a key's __eq__) only after a dict with other than str keys has changed.
  bool intact() {
    for (size_t i = 0; i < dicts.size(); ++i)
      if (dict_tag(dicts[i].dict) != dicts[i].tag && (!refresh_dict(i) || dead)) return false;
    for (auto& w : pointers)
      if (*w.address != w.expected) return false;
    for (size_t i = 0; i < types.size(); ++i)
      if ((type_tag(types[i].type) != types[i].tag || types[i].tag == 0) && !refresh_type(i)) return false;
    for (auto& w : lists)
      if ((size_t)Py_SIZE(w.list) != w.items.size() || (!w.items.empty() && std::memcmp(w.list->ob_item, w.items.data(), w.items.size() * sizeof(PyObject*)) != 0)) return false;
    if (reads_abstract_classes && (abstract_classes < 0 || abstract_classes != abstract_class_registrations())) return false;
    return tensors_unchanged(tensors.data(), tensors.size());
  }

  bool refresh_dict(size_t i) {
    PyObject* d = dicts[i].dict;
    uint64_t tag = dict_tag(d);
    for (auto& f : dict_facts[i]) {
      if (f.kind == DictFact::kLength) {
        if (PyDict_GET_SIZE(d) != f.length) return false;
      } else if (f.kind == DictFact::kKeys) {
        if (!keys_are(d, f.key.get())) return false;
      } else {
        PyObject* now = _PyDict_GetItem_KnownHash(d, f.key.get(), f.hash);
        if (!now && PyErr_Occurred()) {
          PyErr_Clear();
          return false;
        }
        if (now != f.value) return false;
      }
    }
    dicts[i].tag = tag;
    return true;
  }

  bool refresh_type(size_t i) {
    PyTypeObject* t = types[i].type;
    for (auto& f : type_facts[i])
      if (_PyType_Lookup(t, f.name.get()) != f.value) return false;
    types[i].tag = type_tag(t);
    return true;
  }
};

}  // namespace
}  // namespace jit
