// What a walk over watched objects has read, and whether it still holds.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "dict_versions.h"
#include "guard_tensor.h"
#include "weak.h"

namespace jit {
namespace {

bool float_same(double a, double b) { return a == b ? std::signbit(a) == std::signbit(b) : (a != a && b != b); }

// Exact types and equal values: -0.0 differs from 0.0, nan equals nan, True differs from 1. What is wanted weakly is
// meant by identity.
bool const_equal(PyObject* want, PyObject* have) {
  if (want == have) return true;
  if (weak_check(want)) return weak_is(want, have);
  if (Py_TYPE(want) != Py_TYPE(have)) return false;
  if (PyUnicode_CheckExact(want)) return PyUnicode_Compare(want, have) == 0;
  if (PyBool_Check(want) || want == Py_None || want == Py_Ellipsis || PyType_Check(want) || PyModule_Check(want) ||
      PyFunction_Check(want))
    return false;
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
bool plain_length(PyObject* o) {
  return PyDict_Check(o) && Py_TYPE(o)->tp_as_mapping->mp_length == PyDict_Type.tp_as_mapping->mp_length;
}

// Where a class's version lies, with what else shares its eight bytes. A version of 0 means none.
Memory* type_version(PyTypeObject* t) {
  static_assert(offsetof(PyTypeObject, tp_version_tag) % sizeof(uint64_t) == 0 &&
                sizeof(PyTypeObject) - offsetof(PyTypeObject, tp_version_tag) >= sizeof(uint64_t));
  return reinterpret_cast<Memory*>(&t->tp_version_tag);
}

// Whether an object's class stays what it is for as long as the object lives.
bool fixed_type(PyObject* o) { return PyType_HasFeature(Py_TYPE(o), Py_TPFLAGS_IMMUTABLETYPE) && !PyModule_Check(o); }

// How often a class has been registered with an abstract class so far (``abc.get_cache_token()``); -1 where that cannot
// be told.
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
  bool fits =
      std::strcmp(Py_TYPE(o)->tp_name, "functools._lru_list_elem") == 0 && Py_TYPE(o)->tp_basicsize == sizeof(Link);
  return fits ? &reinterpret_cast<Link*>(o)->result : nullptr;
}

// A key as a program of guards has it: itself, or, where it is known weakly, what that refers to; null once it is gone.
Ref key_of(PyObject* payload) { return weak_check(payload) ? Ref::steal(weak_get(payload)) : Ref::share(payload); }

// Whether looking up a key may run code of the program's.
bool plain_key(PyObject* key) { return PyUnicode_CheckExact(key) || PyLong_CheckExact(key); }

// An object that a walk has read, and how to tell that what is found in its place later is still the same one. It is
// not kept alive, but for plain constants, classes and code: what is no longer the program's has to die, and another
// object may then get its address.
struct Seen {
  enum Kind : uint8_t {
    kNothing,  // there was nothing
    kKept,
    kWeak,   // `token` is a Weak
    kReread  // `token` is its type; whatever was read of it has a watch of its own, behind the one that has led to it.
             // A tensor is one of these: all that is known of it is looked at on every call, and
             // torch.utils.swap_tensors refuses tensors that are referred to weakly
  } kind = kNothing;
  PyObject* object = nullptr;
  PyObject* token = nullptr;

  bool is(PyObject* now) const { return now == object && alive(); }
  // Whether what lies at the address, an object that is alive, is this one.
  bool alive() const {
    return kind <= kKept || (kind == kWeak ? weak_is(token, object) : (PyObject*)Py_TYPE(object) == token);
  }
};

// Whether a snapshot may keep an object alive.
bool harmless(PyObject* o) {
  if (o == Py_None || PyType_Check(o) || PyUnicode_CheckExact(o) || PyLong_Check(o) || PyFloat_CheckExact(o) ||
      PyModule_Check(o) || PyCode_Check(o))
    return true;
  if (PyTuple_Check(o)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i)
      if (PyTuple_Check(PyTuple_GET_ITEM(o, i)) || !harmless(PyTuple_GET_ITEM(o, i))) return false;
    return true;
  }
  if (PyCFunction_Check(o))
    return !PyCFunction_GET_SELF(o) || PyModule_Check(PyCFunction_GET_SELF(o)) || PyType_Check(PyCFunction_GET_SELF(o));
  if (is_tensor(o) || PyType_SUPPORTS_WEAKREFS(Py_TYPE(o))) return false;
  return !(PyDict_Check(o) || PyList_Check(o) || PyCell_Check(o) || (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE));
}

struct DictFact {
  enum Kind : uint8_t { kValue, kLength, kKeys } kind;
  Ref key;  // of kValue, see key_of; the tuple of kKeys
  Py_hash_t hash;
  Seen value;  // nothing when the key was absent
  Py_ssize_t length;
};

struct TypeFact {
  Ref name;
  Seen value;
};

// A place that a walk has read. Places are looked at in the order in which they were read: each is alive where those
// before it are as they were.
struct Watch {
  enum Kind : uint8_t {
    kDict,
    kPointer,
    kTyped,
    kWeak,
    kType,
    kSequence
  } kind;             // kTyped, kWeak: pointers to what is not kept alive
  bool moved;         // of kDict: whether looking at it again may run code of the program's
  bool of_dict;       // of kTyped: whether whatever is there is a dict
  uint32_t index;     // into the list of its kind
  void* at;           // the dict, type or sequence, or the pointer's address
  uint64_t expected;  // the version of a dict or type, or the pointer's value
  PyObject* token;    // of kTyped and kWeak, see Seen; the class of a dict
};

// What tells that a place is as it was: a word of memory, and what it held. It is alive where the words before it are
// as they were.
struct Word {
  Memory* at;
  uint64_t expected;
};

struct Snapshot {
  struct Sequence {
    bool is_list = false;
    std::vector<PyObject*> items;
    PyObject** place = nullptr;  // where they lay
    std::vector<Seen> loose;     // of the items: those that are not kept alive
  };

  std::vector<PyObject*> roots;  // Weaks
  std::vector<Watch> watches;
  std::vector<Word> words;               // the watches as words, one or more for each
  std::vector<uint32_t> word_watch;      // per word: its watch
  std::vector<Word> other_words;         // where changes of dicts are counted: the words but for those of dicts
  uint64_t dict_count = dict_changes();  // at which all words were as noted: before the walk, to begin with
  std::vector<std::vector<DictFact>> dicts;
  std::vector<DictVersion> versions;  // of the dicts
  std::vector<std::vector<TypeFact>> types;
  std::vector<Sequence> sequences;
  std::vector<TensorWatch> tensors;  // behind all others; nothing is reached through them
  std::unordered_map<PyObject*, size_t> dict_index, type_index, seen_index;
  std::unordered_set<PyObject*> sequence_index;
  std::unordered_set<PyObject**> pointer_index;
  std::vector<Ref> keep;  // what Seen refers to, and the classes above
  std::vector<Seen> seen;
  std::vector<PyObject*> values;  // per accessor of the watched section; alive while the snapshot is intact
  // What cannot be watched is read anew on every call: these accessors of the watched section, and these of its checks.
  std::vector<uint8_t> unsteady;
  std::vector<int32_t> every_call;
  std::vector<int32_t> anchors;  // the steady accessors that those start from
  std::vector<Ref> passing;      // what unsteady accessors gave, for this call alone
  bool reads_abstract_classes = false;
  int64_t abstract_classes = 0;        // registrations at the time
  bool steady = dict_versions_tell();  // false when others depend on an unsteady accessor too: each call walks
  bool dead = false;                   // something that the program refers to weakly has died

  void hold(PyObject* o) { keep.push_back(Ref::share(o)); }

  Seen see(PyObject* o) {
    if (!o) return Seen{};
    auto [it, fresh] = seen_index.try_emplace(o, seen.size());
    if (!fresh) return seen[it->second];
    Seen s{Seen::kKept, o, nullptr};
    if (harmless(o)) {
      hold(o);
    } else if (PyObject* weak = !is_tensor(o) && PyType_SUPPORTS_WEAKREFS(Py_TYPE(o)) ? weak_new(o) : nullptr) {
      keep.push_back(Ref::steal(weak));
      s = Seen{Seen::kWeak, o, weak};
    } else {
      PyErr_Clear();
      hold((PyObject*)Py_TYPE(o));
      s = Seen{Seen::kReread, o, (PyObject*)Py_TYPE(o)};
    }
    seen.push_back(s);
    if (s.kind == Seen::kReread && PyTuple_Check(o)) sequence(o);
    return s;
  }

  std::vector<DictFact>& dict(PyObject* d) {
    auto [it, fresh] = dict_index.try_emplace(d, dicts.size());
    if (fresh) {
      if (PyType_HasFeature(Py_TYPE(d), Py_TPFLAGS_HEAPTYPE)) hold((PyObject*)Py_TYPE(d));
      versions.emplace_back(d);
      steady &= versions.back().tells();
      watches.push_back(
          {Watch::kDict, false, false, (uint32_t)dicts.size(), d, *versions.back().word(), (PyObject*)Py_TYPE(d)});
      dicts.emplace_back();
      dict_watch_.push_back(watches.size() - 1);
    }
    return dicts[it->second];
  }

  void add(PyObject* d, DictFact fact, bool plain) {
    std::vector<DictFact>& facts = dict(d);
    facts.push_back(std::move(fact));
    if (!plain) watches[dict_watch_[dict_index[d]]].moved = true;
  }

  void dict_value(PyObject* d, PyObject* key, Py_hash_t hash, PyObject* value) {
    dict(d);
    add(d, {DictFact::kValue, Ref::share(key), hash, see(value), 0}, plain_key(key));
  }

  void dict_length(PyObject* d) { add(d, {DictFact::kLength, Ref(), -1, Seen{}, PyDict_GET_SIZE(d)}, true); }

  void dict_keys(PyObject* d, PyObject* keys) {
    bool plain = true;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); ++i)
      plain &= plain_key(PyTuple_GET_ITEM(keys, i)) || weak_check(PyTuple_GET_ITEM(keys, i));
    add(d, {DictFact::kKeys, Ref::share(keys), -1, Seen{}, 0}, plain);
  }

  // A lookup of `name` along the type's MRO. The tag has just been assigned by the lookup itself, if it could be.
  void type(PyTypeObject* t, PyObject* name, PyObject* value) {
    if (!(t->tp_flags & Py_TPFLAGS_HEAPTYPE)) return;  // cannot change
    auto [it, fresh] = type_index.try_emplace((PyObject*)t, types.size());
    if (fresh) {
      hold((PyObject*)t);
      watches.push_back({Watch::kType, false, false, (uint32_t)types.size(), t, *type_version(t), nullptr});
      types.emplace_back();
    }
    types[it->second].push_back({Ref::share(name), see(value)});
  }

  // `of_dict`: what lies there is null or a dict, always.
  void pointer(PyObject** address, bool of_dict = false) {
    if (!pointer_index.insert(address).second) return;
    size_t at = watches.size();
    watches.push_back({Watch::kPointer, false, of_dict, 0, address, (uint64_t)(uintptr_t)*address, nullptr});
    Seen there = see(*address);
    if (there.kind > Seen::kKept) {
      watches[at].kind = there.kind == Seen::kWeak ? Watch::kWeak : Watch::kTyped;
      watches[at].token = there.token;
    }
  }

  // What has led to the object tells whether it is still the same one, or at least of the same type.
  void object_type(PyObject* o) {
    if (!fixed_type(o)) pointer(reinterpret_cast<PyObject**>(&o->ob_type));
  }

  // A list or a tuple.
  void sequence(PyObject* o) {
    if (!sequence_index.insert(o).second) return;
    size_t at = sequences.size();
    watches.push_back({Watch::kSequence, false, false, (uint32_t)at, o, 0, nullptr});
    sequences.emplace_back();
    Sequence now;
    now.is_list = PyList_Check(o);
    now.place = PySequence_Fast_ITEMS(o);
    now.items.assign(now.place, now.place + Py_SIZE(o));
    for (PyObject* item : now.items) {
      Seen s = see(item);
      if (s.kind > Seen::kKept) now.loose.push_back(s);
    }
    sequences[at] = std::move(now);
  }

  void root(PyObject* weak) {
    hold(weak);
    roots.push_back(weak);
  }

  // Ends the walk: from here on the words are looked at.
  void seal() {
    for (uint32_t i = 0; i < watches.size(); ++i) {
      const Watch& w = watches[i];
      auto word = [&](const void* at, uint64_t expected) {
        words.push_back({static_cast<Memory*>(at), expected});
        word_watch.push_back(i);
      };
      auto points = [&](const void* at, const void* to) { word(at, (uint64_t)(uintptr_t)to); };
      // That the object at an address is still what it was.
      auto same = [&](PyObject* o, Seen::Kind kind, PyObject* token) {
        if (kind == Seen::kWeak) points(weak_place(token), o);
        if (kind == Seen::kReread) points(&o->ob_type, token);
      };
      switch (w.kind) {
        case Watch::kDict: word(versions[w.index].word(), w.expected); break;
        case Watch::kType: {
          Word then = type_word(static_cast<PyTypeObject*>(w.at), w.expected);
          word(then.at, then.expected);
          break;
        }
        case Watch::kPointer:
        case Watch::kTyped:
        case Watch::kWeak: {
          auto* there = reinterpret_cast<PyObject*>((uintptr_t)w.expected);
          points(w.at, there);
          // A dict's version is its own, and is looked at.
          if (w.kind == Watch::kTyped && !(w.of_dict && dict_index.count(there))) same(there, Seen::kReread, w.token);
          if (w.kind == Watch::kWeak) same(there, Seen::kWeak, w.token);
          break;
        }
        case Watch::kSequence: {
          auto* o = static_cast<PyObject*>(w.at);
          const Sequence& s = sequences[w.index];
          word(&reinterpret_cast<PyVarObject*>(o)->ob_size, s.items.size());
          if (s.is_list) points(&reinterpret_cast<PyListObject*>(o)->ob_item, s.place);
          for (size_t k = 0; k < s.items.size(); ++k) points(s.place + k, s.items[k]);
          for (const Seen& item : s.loose) same(item.object, item.kind, item.token);
          break;
        }
      }
    }
    note_count(dict_count);
  }

  // Notes that all words are as expected, as they were at that count.
  void note_count(uint64_t count) {
    dict_count = count;
    if (!kDictsCounted || !others_moved_) return;
    others_moved_ = false;
    other_words.clear();
    for (size_t k = 0; k < words.size(); ++k)
      if (watches[word_watch[k]].kind != Watch::kDict) other_words.push_back(words[k]);
  }

  // Whether no word has changed, where that can be told without the dicts.
  bool quiet() const {
    if (!kDictsCounted || dict_count != dict_changes()) return false;
    for (const Word& w : other_words)
      if (*w.at != w.expected) return false;
    return true;
  }

  // The first word from `k` on that is another one; the number of words where none is.
  size_t differing(size_t k) const {
    const Word *first = words.data(), *last = first + words.size(), *w = first + k;
    while (w != last && *w->at == w->expected) ++w;
    return (size_t)(w - first);
  }

  bool any_unsteady() const { return std::find(unsteady.begin(), unsteady.end(), 1) != unsteady.end(); }

  template <typename F>
  int visit_refs(F f) {
    for (auto& k : keep)
      if (int r = f(k.get())) return r;
    for (auto& facts : dicts)
      for (auto& k : facts)
        if (k.kind == DictFact::kValue)
          if (int r = f(k.key.get())) return r;
    return 0;
  }

  // Whether the weak roots are there; all else is reached from them, or from what is kept.
  bool rooted() const {
    for (PyObject* weak : roots)
      if (weak_gone(weak)) return false;
    return true;
  }

  // Whether everything read is as it was, where the first word that differs is `k`. Dicts and types whose relevant
  // names are unchanged get their new version. Code of the program's (a key's __eq__) may run where a dict with other
  // than plain keys has changed; then all is looked at again, and only what is intact without that is.
  bool intact(size_t k) {
    bool again = false;
    if (!places_intact(k, &again)) return false;
    if (again && (dead || !rooted() || !places_intact(differing(0), &again) || again)) return false;
    return rest_unchanged();
  }

  // What no word tells.
  bool rest_unchanged() const {
    if (reads_abstract_classes && (abstract_classes < 0 || abstract_classes != abstract_class_registrations()))
      return false;
    return tensors_unchanged(tensors.data(), tensors.size());
  }

 private:
  bool places_intact(size_t k, bool* ran_code) {
    *ran_code = false;
    for (; k < words.size(); k = differing(k + 1)) {
      const Watch& w = watches[word_watch[k]];
      switch (w.kind) {
        case Watch::kDict:
          if (!refresh_dict(w, words[k]) || dead) return false;
          if (w.moved) {
            *ran_code = true;
            return true;
          }
          continue;
        case Watch::kType:
          if (!refresh_type(w, words[k])) return false;
          continue;
        case Watch::kSequence:
          if (!refresh_sequence(w, k)) return false;
          continue;
        default: return false;
      }
    }
    return true;
  }

  bool refresh_dict(const Watch& w, Word& word) {
    PyObject* d = static_cast<PyObject*>(w.at);
    if (!versions[w.index].of(d) || (PyObject*)Py_TYPE(d) != w.token) return false;
    Ref keep = Ref::share(d);
    uint64_t version = *word.at;
    for (auto& f : dicts[w.index]) {
      if (f.kind == DictFact::kLength) {
        if (PyDict_GET_SIZE(d) != f.length) return false;
      } else if (f.kind == DictFact::kKeys) {
        if (!keys_are(d, f.key.get())) return false;
      } else {
        Ref key = key_of(f.key.get());
        PyObject* now = key ? _PyDict_GetItem_KnownHash(d, key.get(), f.hash) : nullptr;
        if (!now && (!key || PyErr_Occurred())) {
          PyErr_Clear();
          return false;
        }
        if (!f.value.is(now)) return false;
      }
    }
    word.expected = version;
    return true;
  }

  bool refresh_type(const Watch& w, Word& word) {
    auto* t = static_cast<PyTypeObject*>(w.at);
    for (auto& f : types[w.index])
      if (!f.value.is(_PyType_Lookup(t, f.name.get()))) return false;
    word = type_word(t, *type_version(t));
    others_moved_ = true;
    return true;
  }

  // A list's items may have moved.
  bool refresh_sequence(const Watch& w, size_t k) {
    auto* o = static_cast<PyObject*>(w.at);
    const Sequence& s = sequences[w.index];
    if (!s.is_list || words[k].at != reinterpret_cast<Memory*>(&reinterpret_cast<PyListObject*>(o)->ob_item))
      return false;
    PyObject** items = reinterpret_cast<PyListObject*>(o)->ob_item;
    words[k].expected = (uint64_t)(uintptr_t)items;
    for (size_t i = 0; i < s.items.size(); ++i) words[k + 1 + i].at = reinterpret_cast<Memory*>(items + i);
    others_moved_ = true;
    return true;
  }

  // The version that a class had; where it had none, a word that always differs, so that it is asked each time.
  static Word type_word(PyTypeObject* t, uint64_t version) {
    static const uint64_t none = 0;
    decltype(t->tp_version_tag) tag;
    std::memcpy(&tag, &version, sizeof(tag));
    return tag ? Word{type_version(t), version} : Word{&none, 1};
  }

  std::vector<size_t> dict_watch_;  // per dict: its watch
  bool others_moved_ = true;        // since other_words were taken
};

// Whether all that a walk has read is as it was, but for what is read on every call.
bool unchanged(const std::shared_ptr<Snapshot>& snapshot) {
  Snapshot& s = *snapshot;
  if (!s.steady || !s.rooted()) return false;
  // Code of the program's, which may replace the snapshot, is not run where nothing has changed.
  if (s.quiet()) return s.rest_unchanged();
  uint64_t count = dict_changes();
  size_t changed = s.differing(0);
  if (changed == s.words.size()) {
    s.note_count(count);
    return s.rest_unchanged();
  }
  std::shared_ptr<Snapshot> keep = snapshot;
  if (!keep->intact(changed)) return false;
  keep->note_count(count);
  return true;
}

}  // namespace
}  // namespace jit
