// Guard programs: accessors that walk from roots to objects, and checks on what they reach.
//
// Checks on locals run on every call. Facts reached from constant roots (module trees, globals, closures, classes) are watched: one successful walk
// records the version tag of every dict and type it has read, the contents of lists, and the addresses of the pointers it has followed. As long as those are
// unchanged the facts hold. A changed dict or type is first looked at for the names that were read (stores to others, and same-value stores, only move the recorded tag);
// anything else leads to a new walk.
#include "guards.h"

#include <cmath>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "guard_tensor.h"
#include "plan.h"
#include "regs.h"

namespace jit {
namespace {

enum class A : uint8_t { Local, Const, Weak, Watched, DictAttr, GetAttr, TypeAttr, ClassAttr, Type, Item, Cell, Closure, Function, Dict, Grad, Wrapped };
enum class C : uint8_t { TypeIs, Is, IsNot, Eq, Len, DictKeys, DictLacks, NoDictAttr, TypeLacks, ClassLacks, Tensor, Truth, Same, Distinct, NoAlias, GlobalState, Dims, Elements };

const std::pair<const char*, A> kAccessors[] = {
    {"local", A::Local}, {"const", A::Const}, {"weak", A::Weak}, {"dict_attr", A::DictAttr}, {"getattr", A::GetAttr}, {"type_attr", A::TypeAttr}, {"class_attr", A::ClassAttr}, {"type", A::Type},
    {"item", A::Item}, {"cell", A::Cell}, {"closure", A::Closure}, {"function", A::Function}, {"dict", A::Dict}, {"grad", A::Grad}, {"wrapped", A::Wrapped}};
const std::pair<const char*, C> kChecks[] = {
    {"type_is", C::TypeIs}, {"is", C::Is}, {"is_not", C::IsNot}, {"eq", C::Eq}, {"len", C::Len}, {"dict_keys", C::DictKeys}, {"elements", C::Elements}, {"dict_lacks", C::DictLacks}, {"no_dict_attr", C::NoDictAttr},
    {"type_lacks", C::TypeLacks}, {"class_lacks", C::ClassLacks}, {"tensor", C::Tensor}, {"truth", C::Truth}, {"same", C::Same}, {"distinct", C::Distinct}, {"no_alias", C::NoAlias}, {"global_state", C::GlobalState}, {"dims", C::Dims}};

struct Accessor {
  A kind;
  int32_t parent = -1;
  int64_t index = 0;    // local, closure, list item, function field, or the index in the watched section
  Ref payload;
  Py_hash_t hash = -1;  // of a str or int payload
};

struct DimsCheck {
  std::vector<int32_t> accessors;
  std::vector<Reg> regs;
  enum Relation : uint8_t { EQ, NE, GE, GT, LE, LT };
  std::vector<std::pair<int32_t, Relation>> conditions;
};

struct Check {
  C kind;
  int32_t accessor = -1, other = -1;
  int64_t number = 0;
  Ref payload;
  Py_hash_t hash = -1;
  std::shared_ptr<const TensorSpec> tensor;
  std::shared_ptr<const GlobalState> state;
  std::shared_ptr<DimsCheck> dims;
  int32_t original = -1;  // index in the list the program was made from
};

struct Section {
  std::vector<Accessor> accessors;
  std::vector<Check> checks;
};

enum FunctionField : int64_t { kCode, kDefaults, kKwDefaults, kDict };

PyObject** function_field(PyObject* f, int64_t field) {
  auto* fn = reinterpret_cast<PyFunctionObject*>(f);
  switch (field) {
    case kCode: return &fn->func_code;
    case kDefaults: return &fn->func_defaults;
    case kKwDefaults: return &fn->func_kwdefaults;
    default: return &fn->func_dict;
  }
}

// ---- what a walk has read ----------------------------------------------------------------------------------------------------

uint64_t dict_tag(PyObject* d) {
  uint64_t tag = reinterpret_cast<PyDictObject*>(d)->ma_version_tag;
#if PY_VERSION_HEX >= 0x030C0000
  tag >>= 8;  // the low byte says which watchers are installed
#endif
  return tag;
}

unsigned type_tag(PyTypeObject* t) { return t->tp_version_tag; }

struct DictFact {
  enum Kind : uint8_t { kValue, kLength, kKeys } kind;
  Ref key;         // of kValue; the tuple of kKeys
  Py_hash_t hash;
  PyObject* value;  // kept alive by the snapshot; null when the key was absent
  Py_ssize_t length;
};

bool keys_are(PyObject* dict, PyObject* keys);

struct Snapshot {
  struct DictWatch { PyObject* dict; uint64_t tag; };
  struct TypeWatch { PyTypeObject* type; unsigned tag; };
  struct PointerWatch { PyObject** address; PyObject* expected; };
  struct ListWatch { PyListObject* list; std::vector<PyObject*> items; };
  struct TensorWatch { PyObject* tensor; void* identity; const TensorSpec* spec; };
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
  bool steady = true;                              // false when something was read that cannot be watched
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
    for (auto& w : tensors)
      if (tensor_identity(w.tensor) != w.identity || (w.spec && !tensor_matches(*w.spec, w.tensor))) return false;
    return true;
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

// ---- values -----------------------------------------------------------------------------------------------------------------

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

// The lookup d[key] is dict's own, whatever the subclass.
bool plain_lookup(PyObject* o) { return PyDict_Check(o) && (PyDict_CheckExact(o) || Py_TYPE(o)->tp_as_mapping->mp_subscript == PyDict_Type.tp_as_mapping->mp_subscript); }

// ---- evaluation -------------------------------------------------------------------------------------------------------------

class Evaluator {
 public:
  Evaluator(const Section& section, PyObject* const* locals, Py_ssize_t n_locals, PyObject* const* watched, Snapshot* record)
      : s_(section), locals_(locals), n_locals_(n_locals), watched_(watched), record_(record) {
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
    for (PyObject* o : owned_) Py_DECREF(o);
  }

  // The object that an accessor reaches, borrowed from this evaluator; null when it cannot be reached.
  PyObject* get(int32_t i) {
    if (PyObject* o = values_[i]) return o;
    const Accessor& a = s_.accessors[i];
    switch (a.kind) {
      case A::Local: return values_[i] = a.index < n_locals_ ? locals_[a.index] : nullptr;
      case A::Const: return values_[i] = a.payload.get();
      case A::Watched: return values_[i] = watched_ ? watched_[a.index] : nullptr;
      default: break;
    }
    PyObject* parent = nullptr;
    if (a.kind != A::Weak && !(parent = get(a.parent))) return nullptr;
    PyObject* o = reach(a, parent);
    if (!o) {
      PyErr_Clear();
      return nullptr;
    }
    owned_.push_back(o);
    if (a.kind == A::Weak && record_) record_->loose.push_back(o);
    return values_[i] = o;
  }

  PyObject* const* values() const { return values_; }

  bool check(const Check& c) {
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
          record_->hold(o);
          record_->tensors.push_back({o, tensor_identity(o), c.tensor.get()});
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
      default: return false;
    }
  }

 private:
  void volatile_read() {
    if (record_) record_->steady = false;
  }

  PyObject* instance_dict(PyObject* o) {
    if (PyType_Check(o)) return nullptr;
    PyObject** address = _PyObject_GetDictPtr(o);
    if (!address || !*address || !PyDict_Check(*address)) {
      // No dict yet: one may appear at any time.
      if (address && record_) record_->pointer(o, address);
      return nullptr;
    }
    if (record_) record_->pointer(o, address);
    return *address;
  }

  PyObject* lookup(PyObject* dict, PyObject* key, Py_hash_t hash) {
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
      record_->dict_value(dict, key, hash, value);
    }
    return value;
  }

  // A new reference, or null (an error may be set).
  PyObject* reach(const Accessor& a, PyObject* o) {
    switch (a.kind) {
      case A::Weak: {
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
        if (record_) record_->pointer(o, &reinterpret_cast<PyCellObject*>(o)->ob_ref);
        return Py_XNewRef(PyCell_GET(o));
      }
      case A::Closure: {
        if (!PyFunction_Check(o)) return nullptr;
        if (record_) record_->pointer(o, &reinterpret_cast<PyFunctionObject*>(o)->func_closure);
        PyObject* cells = PyFunction_GET_CLOSURE(o);
        return cells && a.index >= 0 && a.index < PyTuple_GET_SIZE(cells) ? Py_NewRef(PyTuple_GET_ITEM(cells, a.index)) : nullptr;
      }
      case A::Function: {
        if (!PyFunction_Check(o)) return nullptr;
        PyObject** field = function_field(o, a.index);
        if (record_) record_->pointer(o, field);
        return Py_NewRef(*field ? *field : Py_None);
      }
      case A::Grad: volatile_read(); return tensor_grad(o);
      case A::Wrapped: {
        PyObject* f;
        return dispatcher_function(o, &f) ? Py_NewRef(f) : nullptr;
      }
      default: return nullptr;
    }
  }

  PyObject* item(const Accessor& a, PyObject* o) {
    bool is_list = PyList_CheckExact(o);
    if ((is_list || PyTuple_CheckExact(o) || (PyTuple_Check(o) && Py_TYPE(o)->tp_as_sequence->sq_item == PyTuple_Type.tp_as_sequence->sq_item)) && PyLong_Check(a.payload.get())) {
      if (is_list && record_) record_->list(o);
      Py_ssize_t n = is_list ? PyList_GET_SIZE(o) : PyTuple_GET_SIZE(o), i = a.index < 0 ? a.index + n : a.index;
      if (i < 0 || i >= n) return nullptr;
      return Py_NewRef(is_list ? PyList_GET_ITEM(o, i) : PyTuple_GET_ITEM(o, i));
    }
    if (plain_lookup(o)) return Py_XNewRef(lookup(o, a.payload.get(), a.hash));
    volatile_read();
    return PyObject_GetItem(o, a.payload.get());
  }

  bool length(const Check& c, PyObject* o) {
    if (PyDict_CheckExact(o)) {
      if (PyDict_GET_SIZE(o) != c.number) return false;
      if (record_) record_->dict(o).push_back({DictFact::kLength, Ref(), -1, nullptr, (Py_ssize_t)c.number});
      return true;
    }
    if (PyList_CheckExact(o)) {
      if (record_) record_->list(o);
      return PyList_GET_SIZE(o) == c.number;
    }
    if (PyTuple_CheckExact(o)) return PyTuple_GET_SIZE(o) == c.number;
    volatile_read();
    Py_ssize_t n = PyObject_Size(o);
    if (n < 0) PyErr_Clear();
    return n == c.number;
  }

  // The elements of a set, in the order of iteration.
  bool elements(const Check& c, PyObject* o) {
    if (!PyAnySet_Check(o) || PySet_GET_SIZE(o) != PyTuple_GET_SIZE(c.payload.get())) return false;
    if (!PyFrozenSet_CheckExact(o)) volatile_read();
    Ref now = Ref::steal(PySequence_Tuple(o));
    if (!now) PyErr_Clear();
    return now && const_equal(c.payload.get(), now.get());
  }

  bool dict_keys(const Check& c, PyObject* o) {
    if (PyDict_CheckExact(o)) {
      if (!keys_are(o, c.payload.get())) return false;
      if (record_) record_->dict(o).push_back({DictFact::kKeys, c.payload, -1, nullptr, 0});
      return true;
    }
    // A subclass may order its keys in its own way (OrderedDict does).
    volatile_read();
    if (!PyDict_Check(o)) return false;
    Ref keys = Ref::steal(PySequence_Tuple(o));
    if (!keys) PyErr_Clear();
    return keys && const_equal(c.payload.get(), keys.get());
  }

  bool lacks(const Check& c, PyObject* o) {
    if (!PyDict_Check(o)) return false;
    if (!plain_lookup(o)) volatile_read();
    return !lookup(o, c.payload.get(), c.hash);
  }

  bool no_dict_attr(const Check& c, PyObject* o) {
    if (PyType_Check(o)) return false;
    PyObject* d = instance_dict(o);
    return !d || !lookup(d, c.payload.get(), c.hash);
  }

  int truth(PyObject* o) {
    if (o == Py_True) return 1;
    if (o == Py_False || o == Py_None) return 0;
    if (!(PyLong_CheckExact(o) || PyUnicode_CheckExact(o) || PyFloat_CheckExact(o) || PyTuple_CheckExact(o) || PyBytes_CheckExact(o))) {
      if (PyList_CheckExact(o) && record_) {
        record_->list(o);
      } else if (PyDict_CheckExact(o) && record_) {
        record_->dict(o).push_back({DictFact::kLength, Ref(), -1, nullptr, PyDict_GET_SIZE(o)});
      } else {
        volatile_read();
      }
    }
    int t = PyObject_IsTrue(o);
    if (t < 0) PyErr_Clear();
    return t;
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

  static constexpr size_t kInline = 48;
  const Section& s_;
  PyObject* const* locals_;
  Py_ssize_t n_locals_;
  PyObject* const* watched_;
  Snapshot* record_;
  PyObject* inline_values_[kInline];
  std::unique_ptr<PyObject*[]> heap_values_;
  PyObject** values_;
  std::vector<PyObject*> owned_;
};

// ---- the program ------------------------------------------------------------------------------------------------------------

struct Program {
  Section all, locals, watched, mixed;   // all: as given, for explanations
  std::vector<std::pair<int32_t, int32_t>> binds;  // (accessor of `watched`, plan input)
  std::vector<int32_t> bind_inputs;
  std::shared_ptr<Snapshot> snapshot;    // null: not verified
  int32_t last_failed = -1;              // check of `watched` that failed last
  Ref plan;
  bool cleared = false;  // by the garbage collector, or because a weak root died
  uint64_t walks = 0;

  // The bound tensors that the plan has at present.
  std::vector<PyObject*> bound;

  bool check(PyObject* const* args, Py_ssize_t n) {
    if (cleared) return false;
    if (!locals.checks.empty()) {
      Evaluator e(locals, args, n, nullptr, nullptr);
      for (const Check& c : locals.checks)
        if (!e.check(c)) return false;
    }
    if (!watched.accessors.empty() && !verify()) return false;
    if (!mixed.checks.empty()) {
      std::shared_ptr<Snapshot> keep = snapshot;
      Evaluator e(mixed, args, n, keep ? keep->values.data() : nullptr, nullptr);
      for (const Check& c : mixed.checks)
        if (!e.check(c)) return false;
    }
    return true;
  }

  bool verify() {
    if (Snapshot* s = snapshot.get()) {
      if (s->steady) {
        std::shared_ptr<Snapshot> keep = snapshot;
        if (s->intact()) return true;
      }
    }
    return walk();
  }

  bool walk() {
    ++walks;
    auto fresh = std::make_shared<Snapshot>();
    bool ok = true;
    {
      Evaluator e(watched, nullptr, 0, nullptr, fresh.get());
      // The check that failed last time is the likeliest to fail again.
      if (last_failed >= 0 && !e.check(watched.checks[last_failed])) {
        ok = false;
      } else {
        for (size_t i = 0; ok && i < watched.checks.size(); ++i) {
          if (e.check(watched.checks[i])) continue;
          last_failed = (int32_t)i;
          ok = false;
        }
      }
      if (ok) {
        for (size_t i = 0; ok && i < watched.accessors.size(); ++i) ok = e.get((int32_t)i) != nullptr;
      }
      if (ok) {
        for (size_t i = 0; i < watched.accessors.size(); ++i) {
          PyObject* o = e.values()[i];
          fresh->hold(o);
          fresh->values.push_back(o);
        }
        ok = rebind(*fresh);
      }
    }
    if (!ok) {
      std::shared_ptr<Snapshot> old = std::move(snapshot);
      snapshot.reset();
      return false;
    }
    std::shared_ptr<Snapshot> old = std::move(snapshot);
    snapshot = std::move(fresh);
    return true;
  }

  // Gives the plan the tensors that the walk found, and watches their identity.
  bool rebind(Snapshot& fresh) {
    if (binds.empty()) return true;
    std::vector<PyObject*> tensors;
    for (auto [accessor, input] : binds) {
      PyObject* o = fresh.values[accessor];
      if (!is_tensor(o)) return false;
      tensors.push_back(o);
    }
    if (!plan || tensors == bound) return true;
    if (!plan_rebind(plan.get(), (Py_ssize_t)tensors.size(), bind_inputs.data(), tensors.data())) {
      PyErr_Clear();
      return false;
    }
    bound = std::move(tensors);
    return true;
  }

  // A weak root died: nothing of its tree may be kept by this program, which can never match again.
  void release() {
    cleared = true;
    std::shared_ptr<Snapshot> old = std::move(snapshot);
    snapshot.reset();
    if (old) old->dead = true;
    bound.clear();
    Ref p = std::move(plan);
    plan.reset();
    if (p) plan_unbind(p.get());
  }

  template <typename F>
  int visit_refs(F f) {
    for (Section* s : {&all, &locals, &watched, &mixed}) {
      for (auto& a : s->accessors)
        if (int r = f(a.payload.get())) return r;
      for (auto& c : s->checks)
        if (int r = f(c.payload.get())) return r;
    }
    if (int r = f(plan.get())) return r;
    if (snapshot && snapshot.use_count() == 1) {
      for (auto& k : snapshot->keep)
        if (int r = f(k.get())) return r;
      for (auto& facts : snapshot->dict_facts)
        for (auto& k : facts)
          if (k.kind == DictFact::kValue)
            if (int r = f(k.key.get())) return r;
    }
    return 0;
  }
};

// ---- parsing ----------------------------------------------------------------------------------------------------------------

struct Parser {
  PyObject* on_death;  // called with a weak reference whose object has died
  Section all;
  std::vector<bool> local_rooted, unwatchable;

  void accessor(PyObject* record) {
    Items r(record, "an accessor");
    Accessor a{};
    a.parent = (int32_t)as_int(r[0], "an accessor's parent");
    std::string kind = as_text(r[1], "an accessor's kind");
    PyObject* payload = r.size > 2 ? r[2] : Py_None;
    bool found = false;
    for (auto& [name, code] : kAccessors) {
      if (kind != name) continue;
      a.kind = code;
      found = true;
    }
    if (!found) raise(PyExc_ValueError, "unknown accessor '" + kind + "'");
    bool root = a.kind == A::Local || a.kind == A::Const || a.kind == A::Weak;
    if (root != (a.parent < 0) || a.parent >= (int32_t)all.accessors.size()) raise(PyExc_ValueError, "accessor " + std::to_string(all.accessors.size()) + " (" + kind + ") has a wrong parent");
    a.payload = Ref::share(payload);
    switch (a.kind) {
      case A::Local:
      case A::Closure: a.index = as_int(payload, "an accessor's index"); break;
      case A::Weak: a.payload = Ref::steal(checked(PyWeakref_NewRef(payload, on_death))); break;
      case A::DictAttr:
      case A::GetAttr:
      case A::TypeAttr:
      case A::ClassAttr: {
        if (!PyUnicode_CheckExact(payload)) raise(PyExc_TypeError, "an attribute's name has to be a str");
        PyObject* name = a.payload.release();
        PyUnicode_InternInPlace(&name);
        a.payload = Ref::steal(name);
        a.hash = PyObject_Hash(name);
        break;
      }
      case A::Item:
        if (PyLong_CheckExact(payload)) {
          int overflow;
          a.index = PyLong_AsLongLongAndOverflow(payload, &overflow);
        }
        a.hash = PyObject_Hash(payload);
        if (a.hash == -1) throw PythonError();
        break;
      case A::Function: {
        std::string field = as_text(payload, "a function's field");
        a.index = field == "code" ? kCode : field == "defaults" ? kDefaults : field == "kwdefaults" ? kKwDefaults : field == "dict" ? kDict : -1;
        if (a.index < 0) raise(PyExc_ValueError, "unknown function field '" + field + "'");
        break;
      }
      default: break;
    }
    local_rooted.push_back(root ? a.kind == A::Local : local_rooted[a.parent]);
    unwatchable.push_back((!root && unwatchable[a.parent]) || a.kind == A::GetAttr || a.kind == A::Grad);
    all.accessors.push_back(std::move(a));
  }

  int32_t index(PyObject* o, const char* what) {
    int64_t i = as_int(o, what);
    if (i < 0 || (size_t)i >= all.accessors.size()) raise(PyExc_ValueError, std::string(what) + ": accessor " + std::to_string(i) + " does not exist");
    return (int32_t)i;
  }

  void check(PyObject* record) {
    Items r(record, "a check");
    Check c{};
    std::string kind = as_text(r[1], "a check's kind");
    PyObject* payload = r.size > 2 ? r[2] : Py_None;
    bool found = false;
    for (auto& [name, code] : kChecks) {
      if (kind != name) continue;
      c.kind = code;
      found = true;
    }
    if (!found) raise(PyExc_ValueError, "unknown check '" + kind + "'");
    if (c.kind != C::GlobalState && c.kind != C::Dims) c.accessor = index(r[0], "a check");
    c.payload = Ref::share(payload);
    c.original = (int32_t)all.checks.size();
    switch (c.kind) {
      case C::TypeIs:
        if (!PyType_Check(payload)) raise(PyExc_TypeError, "type_is takes a type");
        break;
      case C::Len: c.number = as_int(payload, "len"); break;
      case C::Truth: c.number = PyObject_IsTrue(payload); break;
      case C::DictKeys:
      case C::Elements: c.payload = Ref::steal(checked(PySequence_Tuple(payload))); break;
      case C::DictLacks:
      case C::NoDictAttr:
      case C::TypeLacks:
      case C::ClassLacks:
        if (c.kind != C::DictLacks) {
          if (!PyUnicode_CheckExact(payload)) raise(PyExc_TypeError, "an attribute's name has to be a str");
          PyObject* name = c.payload.release();
          PyUnicode_InternInPlace(&name);
          c.payload = Ref::steal(name);
        }
        c.hash = PyObject_Hash(c.payload.get());
        if (c.hash == -1) throw PythonError();
        break;
      case C::Tensor: c.tensor = parse_tensor_spec(payload); break;
      case C::Same:
      case C::Distinct:
      case C::NoAlias: c.other = index(payload, "the other side of a check"); break;
      case C::GlobalState: c.state = parse_global_state(payload); break;
      case C::Dims: c.dims = dims(payload); break;
      default: break;
    }
    all.checks.push_back(std::move(c));
  }

  std::shared_ptr<DimsCheck> dims(PyObject* payload) {
    Items t(payload, "dims");
    auto d = std::make_shared<DimsCheck>();
    Items accessors(t[0], "the accessors of dims");
    for (Py_ssize_t i = 0; i < accessors.size; ++i) d->accessors.push_back(index(accessors[i], "dims"));
    d->regs = parse_regs(t[1], (int)d->accessors.size(), (int)d->accessors.size());
    static const std::pair<const char*, DimsCheck::Relation> relations[] = {{"==0", DimsCheck::EQ}, {"!=0", DimsCheck::NE}, {">=0", DimsCheck::GE},
                                                                            {">0", DimsCheck::GT},  {"<=0", DimsCheck::LE}, {"<0", DimsCheck::LT}};
    Items conditions(t[2], "the conditions of dims");
    for (Py_ssize_t i = 0; i < conditions.size; ++i) {
      Items pair(conditions[i], "a condition of dims");
      int64_t reg = as_int(pair[0], "a condition's register");
      if (reg < 0 || (size_t)reg >= d->regs.size()) raise(PyExc_ValueError, "dims: register " + std::to_string(reg) + " does not exist");
      std::string text = as_text(pair[1], "a condition's relation");
      bool found = false;
      for (auto& [name, code] : relations) {
        if (text != name) continue;
        d->conditions.push_back({(int32_t)reg, code});
        found = true;
      }
      if (!found) raise(PyExc_ValueError, "dims: unknown relation '" + text + "'");
    }
    return d;
  }

  // Copies an accessor and its parents into a section. In the mixed section, what is watched is read from the snapshot.
  int32_t place(int32_t i, Section& section, std::vector<int32_t>& where, Section* watched, std::vector<int32_t>* watched_where) {
    if (where[i] >= 0) return where[i];
    Accessor a = all.accessors[i];
    if (watched && !local_rooted[i] && !unwatchable[i]) {
      int32_t source = place(i, *watched, *watched_where, nullptr, nullptr);
      a = Accessor{};
      a.kind = A::Watched;
      a.index = source;
    } else if (a.parent >= 0) {
      a.parent = place(a.parent, section, where, watched, watched_where);
    }
    section.accessors.push_back(std::move(a));
    return where[i] = (int32_t)section.accessors.size() - 1;
  }

  void split(Program& p, PyObject* binds) {
    size_t n = all.accessors.size();
    std::vector<int32_t> in_locals(n, -1), in_watched(n, -1), in_mixed(n, -1);
    for (const Check& original : all.checks) {
      Check c = original;
      std::vector<int32_t> used;
      if (c.accessor >= 0) used.push_back(c.accessor);
      if (c.other >= 0) used.push_back(c.other);
      if (c.dims) used.insert(used.end(), c.dims->accessors.begin(), c.dims->accessors.end());
      bool any_local = false, any_const = false, any_unwatchable = false;
      for (int32_t i : used) {
        any_local |= local_rooted[i];
        any_const |= !local_rooted[i];
        any_unwatchable |= unwatchable[i];
      }
      Section* section;
      std::vector<int32_t>* where;
      if (!any_const) {
        section = &p.locals;
        where = &in_locals;
      } else if (any_local || any_unwatchable || c.kind == C::Dims || c.kind == C::NoAlias) {
        section = &p.mixed;
        where = &in_mixed;
      } else {
        section = &p.watched;
        where = &in_watched;
      }
      bool mixed = section == &p.mixed;
      auto move = [&](int32_t i) { return place(i, *section, *where, mixed ? &p.watched : nullptr, mixed ? &in_watched : nullptr); };
      if (c.accessor >= 0) c.accessor = move(c.accessor);
      if (c.other >= 0) c.other = move(c.other);
      if (c.dims) {
        c.dims = std::make_shared<DimsCheck>(*c.dims);
        for (int32_t& i : c.dims->accessors) i = move(i);
      }
      section->checks.push_back(std::move(c));
    }
    Items list(binds, "binds");
    for (Py_ssize_t i = 0; i < list.size; ++i) {
      Items pair(list[i], "a bind");
      int32_t accessor = index(pair[0], "a bind");
      if (local_rooted[accessor] || unwatchable[accessor]) raise(PyExc_ValueError, "bind: accessor " + std::to_string(accessor) + " is not reached from a constant by watchable steps");
      p.binds.push_back({place(accessor, p.watched, in_watched, nullptr, nullptr), (int32_t)as_int(pair[1], "a bind's input")});
      p.bind_inputs.push_back(p.binds.back().second);
    }
    p.all = std::move(all);
  }
};

// ---- the Python type --------------------------------------------------------------------------------------------------------

struct ProgramObject {
  PyObject_HEAD
  Program* program;
  PyObject* accessors;
  PyObject* checks;
  PyObject* binds;
  PyObject* weakrefs;
};

PyTypeObject ProgramType = {PyVarObject_HEAD_INIT(nullptr, 0)};

ProgramObject* cast(PyObject* o) { return reinterpret_cast<ProgramObject*>(o); }

// The callback of weak roots; its self is a weak reference to the program.
PyObject* root_died(PyObject* program_ref, PyObject*) {
  Ref program = Ref::share(PyWeakref_GetObject(program_ref));
  if (program && program.get() != Py_None) cast(program.get())->program->release();
  Py_RETURN_NONE;
}

PyObject* without_weak_roots(PyObject* records, const Section& all) {
  Ref out = Ref::steal(checked(PyTuple_New(PyTuple_GET_SIZE(records))));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(records); ++i) {
    PyObject* record = PyTuple_GET_ITEM(records, i);
    const Accessor& a = all.accessors[i];
    bool named = PyTuple_Check(record) && PyTuple_GET_SIZE(record) > 3;
    PyTuple_SET_ITEM(out.get(), i, a.kind != A::Weak ? Py_NewRef(record) : checked(named ? Py_BuildValue("(isOO)", -1, "weak", a.payload.get(), PyTuple_GET_ITEM(record, 3)) : Py_BuildValue("(isO)", -1, "weak", a.payload.get())));
  }
  return out.release();
}

PyMethodDef root_died_method = {"root_died", root_died, METH_O, nullptr};

PyObject* program_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"accessors", "checks", "binds", nullptr};
  PyObject *accessors, *checks, *binds = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:GuardProgram", const_cast<char**>(names), &accessors, &checks, &binds)) return nullptr;
  try {
    Ref accessor_tuple = Ref::steal(checked(PySequence_Tuple(accessors))), check_tuple = Ref::steal(checked(PySequence_Tuple(checks)));
    Ref bind_tuple = Ref::steal(binds ? checked(PySequence_Tuple(binds)) : checked(PyTuple_New(0)));
    auto* self = reinterpret_cast<ProgramObject*>(type->tp_alloc(type, 0));
    Ref object = Ref::steal(checked((PyObject*)self));
    self->program = new Program();
    Ref self_ref = Ref::steal(checked(PyWeakref_NewRef(object.get(), nullptr)));
    Ref on_death = Ref::steal(checked(PyCFunction_New(&root_died_method, self_ref.get())));
    Parser parser{on_death.get()};
    Items a(accessor_tuple.get(), "accessors"), c(check_tuple.get(), "checks");
    for (Py_ssize_t i = 0; i < a.size; ++i) parser.accessor(a[i]);
    for (Py_ssize_t i = 0; i < c.size; ++i) parser.check(c[i]);
    parser.split(*self->program, bind_tuple.get());
    // Records of weak roots hold the object itself: only the reference is kept.
    self->accessors = checked(without_weak_roots(accessor_tuple.get(), self->program->all));
    self->checks = check_tuple.release();
    self->binds = bind_tuple.release();
    return object.release();
  } catch (const PythonError&) {
    return nullptr;
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
    return nullptr;
  }
}

int program_traverse(PyObject* o, visitproc visit, void* arg) {
  auto* self = cast(o);
  Py_VISIT(self->accessors);
  Py_VISIT(self->checks);
  Py_VISIT(self->binds);
  if (!self->program) return 0;
  return self->program->visit_refs([&](PyObject* p) -> int {
    Py_VISIT(p);
    return 0;
  });
}

int program_clear(PyObject* o) {
  auto* self = cast(o);
  if (Program* p = self->program) {
    p->cleared = true;
    Section all = std::move(p->all), locals = std::move(p->locals), watched = std::move(p->watched), mixed = std::move(p->mixed);
    p->all = p->locals = p->watched = p->mixed = Section();
    std::shared_ptr<Snapshot> snapshot = std::move(p->snapshot);
    p->snapshot.reset();
    p->plan.reset();
  }
  Py_CLEAR(self->accessors);
  Py_CLEAR(self->checks);
  Py_CLEAR(self->binds);
  return 0;
}

void program_dealloc(PyObject* o) {
  auto* self = cast(o);
  PyObject_GC_UnTrack(o);
  if (self->weakrefs) PyObject_ClearWeakRefs(o);
  program_clear(o);
  delete self->program;
  Py_TYPE(o)->tp_free(o);
}

PyObject* program_check(PyObject* o, PyObject* locals) {
  try {
    Items items(locals, "locals");
    Ref keep = Ref::share(locals);
    return PyBool_FromLong(guards_check(o, items.data, items.size));
  } catch (const PythonError&) {
    return nullptr;
  }
}

// None, or (index of the first check that fails, True when its object was reached, that object).
PyObject* program_failure(PyObject* o, PyObject* locals) {
  try {
    Items items(locals, "locals");
    Ref keep = Ref::share(locals);
    Program* p = cast(o)->program;
    if (p->cleared) Py_RETURN_NONE;
    Evaluator e(p->all, items.data, items.size, nullptr, nullptr);
    for (const Check& c : p->all.checks) {
      if (e.check(c)) continue;
      PyObject* found = c.accessor >= 0 ? e.get(c.accessor) : nullptr;
      return Py_BuildValue("(iOO)", c.original, found ? Py_True : Py_False, found ? found : Py_None);
    }
    Py_RETURN_NONE;
  } catch (const PythonError&) {
    return nullptr;
  }
}

PyObject* program_explain(PyObject* o, PyObject* locals) {
  Ref module = Ref::steal(PyImport_ImportModule("jit.runtime.guards"));
  if (!module) return nullptr;
  return PyObject_CallMethod(module.get(), "explain", "OO", o, locals);
}

// The value of an accessor, for explanations; KeyError when it cannot be reached.
PyObject* program_value(PyObject* o, PyObject* args) {
  PyObject* locals;
  int index;
  if (!PyArg_ParseTuple(args, "Oi:value", &locals, &index)) return nullptr;
  try {
    Items items(locals, "locals");
    Program* p = cast(o)->program;
    if (index < 0 || (size_t)index >= p->all.accessors.size()) raise(PyExc_IndexError, "no such accessor");
    Evaluator e(p->all, items.data, items.size, nullptr, nullptr);
    PyObject* found = e.get(index);
    if (!found) raise(PyExc_KeyError, "accessor cannot be reached");
    return Py_NewRef(found);
  } catch (const PythonError&) {
    return nullptr;
  }
}

PyObject* program_get_stats(PyObject* o, void*) {
  Program* p = cast(o)->program;
  Snapshot* s = p->snapshot.get();
  return Py_BuildValue("{s:K,s:O,s:n,s:n,s:n,s:n,s:n,s:n,s:n,s:n}", "walks", (unsigned long long)p->walks, "armed", s && s->steady ? Py_True : Py_False, "local_checks", (Py_ssize_t)p->locals.checks.size(),
                       "watched_checks", (Py_ssize_t)p->watched.checks.size(), "mixed_checks", (Py_ssize_t)p->mixed.checks.size(), "dicts", (Py_ssize_t)(s ? s->dicts.size() : 0), "types",
                       (Py_ssize_t)(s ? s->types.size() : 0), "pointers", (Py_ssize_t)(s ? s->pointers.size() : 0), "lists", (Py_ssize_t)(s ? s->lists.size() : 0), "tensors",
                       (Py_ssize_t)(s ? s->tensors.size() : 0));
}

PyObject* program_get_field(PyObject* o, void* which) {
  auto* self = cast(o);
  PyObject* v = which == (void*)0 ? self->accessors : which == (void*)1 ? self->checks : self->binds;
  return Py_NewRef(v ? v : Py_None);
}

PyObject* program_set_plan(PyObject* o, PyObject* plan) {
  if (!guards_set_plan(o, plan)) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef program_methods[] = {
    {"check", program_check, METH_O, "check(locals) -> bool: whether the program accepts a tuple of locals."},
    {"failure", program_failure, METH_O, "failure(locals) -> None or (index of the first failing check, whether its object was reached, the object)."},
    {"explain", program_explain, METH_O, "explain(locals) -> str: which accessor and check fails, what was expected and what was found; '' when none does."},
    {"value", program_value, METH_VARARGS, "value(locals, accessor index) -> object."},
    {"set_plan", program_set_plan, METH_O, "set_plan(plan): the plan whose bound inputs follow `binds`."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef program_getset[] = {
    {"accessors", program_get_field, nullptr, "The accessor records.", (void*)0},
    {"checks", program_get_field, nullptr, "The check records.", (void*)1},
    {"binds", program_get_field, nullptr, "(accessor, plan input) pairs.", (void*)2},
    {"stats", program_get_stats, nullptr, "Counters: walks made, armed or not, how much is watched.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

}  // namespace

bool guards_dead(PyObject* program) { return cast(program)->program->cleared; }

bool guards_is_program(PyObject* object) { return PyObject_TypeCheck(object, &ProgramType); }

bool guards_check(PyObject* program, PyObject* const* locals, Py_ssize_t n_locals) { return cast(program)->program->check(locals, n_locals); }

bool guards_set_plan(PyObject* program, PyObject* plan) {
  Program* p = cast(program)->program;
  if (plan != Py_None && !plan_check(plan)) {
    PyErr_SetString(PyExc_TypeError, "expected a loaded plan");
    return false;
  }
  p->bound.clear();
  Ref before = p->plan;
  p->plan = plan == Py_None ? Ref() : Ref::share(plan);
  std::shared_ptr<Snapshot> old = std::move(p->snapshot);  // the next check walks and binds
  p->snapshot.reset();
  return true;
}

bool init_guards(PyObject* module) {
  ProgramType.tp_name = "jit.runtime.native.GuardProgram";
  ProgramType.tp_doc = "GuardProgram(accessors, checks, binds=()): see jit/runtime/guards.py for the records.";
  ProgramType.tp_basicsize = sizeof(ProgramObject);
  ProgramType.tp_weaklistoffset = offsetof(ProgramObject, weakrefs);
  ProgramType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  ProgramType.tp_new = program_new;
  ProgramType.tp_dealloc = program_dealloc;
  ProgramType.tp_traverse = program_traverse;
  ProgramType.tp_clear = program_clear;
  ProgramType.tp_methods = program_methods;
  ProgramType.tp_getset = program_getset;
  if (PyType_Ready(&ProgramType) != 0) return false;
  return init_guard_tensor(module) && PyModule_AddObjectRef(module, "GuardProgram", (PyObject*)&ProgramType) == 0;
}

}  // namespace jit
