// What tells that a dict is as it was: a word of memory that is another one after each change. On CPython 3.11 a dict
// has such a word of its own. From 3.12 on there is a word of ours for each dict that is looked at, which the
// interpreter has us change (a dict watcher), and one more that changes with any of them, so that dicts that nobody
// writes to need not be looked at one by one.
#pragma once

#include <memory>
#include <unordered_map>

#include "common.h"

namespace jit {
namespace {

// Any eight bytes of an object, whatever they are declared as.
using Memory [[gnu::may_alias]] = const uint64_t;

#if PY_VERSION_HEX < 0x030C0000

// Another one after each change, and that of no other dict.
class DictVersion {
 public:
  explicit DictVersion(PyObject* d) : word_(&reinterpret_cast<PyDictObject*>(d)->ma_version_tag) {}
  Memory* word() const { return word_; }
  bool of(PyObject*) const { return true; }
  bool tells() const { return true; }

 private:
  Memory* word_;
};

bool dict_versions_tell() { return true; }

constexpr bool kDictsCounted = false;
uint64_t dict_changes() { return 0; }

#else

// The word of a dict for as long as somebody holds it; the dict may go before.
class DictVersion {
  struct Word;

 public:
  explicit DictVersion(PyObject* d) : DictVersion(d, !inline_values_tell()) {}
  // `detached`: see detach.
  DictVersion(PyObject* d, bool detached) {
    if (detached && reinterpret_cast<PyDictObject*>(d)->ma_values) detach(d);
    auto& known = words()[d];
    word_ = known.lock();
    if (word_) return;
    word_ = std::make_shared<Word>();
    word_->dict = d;
    known = word_;
    word_->watched = watcher() >= 0 && PyDict_Watch(watcher(), d) == 0;
    if (!word_->watched) PyErr_Clear();
  }
  Memory* word() const { return &word_->version; }
  // Whether the dict, one that lies where that of the word lay, is that of the word.
  bool of(PyObject* d) const { return word_->dict == d; }

  // Whether the word changes with the dict.
  bool tells() const { return word_->watched; }

  static bool inline_values_tell();

  // How often any watched dict has changed.
  static uint64_t& changes() {
    static uint64_t count = 0;
    return count;
  }

  // The interpreter's number of our watcher; -1 where it has none left.
  static int watcher() {
    static int number = [] {
      int n = PyDict_AddWatcher(changed);
      if (n < 0) PyErr_Clear();
      return n;
    }();
    return number;
  }

 private:
  // Has an instance's dict take over the values that lie in the instance, as it does for a key that is no str. For a
  // list the garbage collector looks into the dict from then on; the values may be part of cycles.
  static void detach(PyObject* d) {
    Ref key = Ref::steal(PyObject_CallNoArgs((PyObject*)&PyBaseObject_Type)), list = Ref::steal(PyList_New(0));
    if (!key || !list || PyDict_SetItem(d, key.get(), list.get()) != 0 || PyDict_DelItem(d, key.get()) != 0)
      PyErr_Clear();
  }

  struct Word {
    uint64_t version = 1;
    PyObject* dict = nullptr;  // null once it is gone
    bool watched = false;
    ~Word() {
      if (!dict) return;
      words().erase(dict);
      if (watched && PyDict_Unwatch(watcher(), dict) != 0) PyErr_Clear();
    }
  };

  // Never taken down: dicts are changed until the very end of the process.
  static std::unordered_map<PyObject*, std::weak_ptr<Word>>& words() {
    static auto* all = new std::unordered_map<PyObject*, std::weak_ptr<Word>>();
    return *all;
  }

  // Called before the change.
  static int changed(PyDict_WatchEvent event, PyObject* d, PyObject*, PyObject*) {
    ++changes();
    auto at = words().find(d);
    if (at == words().end()) return 0;
    if (auto word = at->second.lock()) {
      ++word->version;
      if (event == PyDict_EVENT_DEALLOCATED) word->dict = nullptr;
    }
    if (event == PyDict_EVENT_DEALLOCATED) words().erase(d);
    return 0;
  }

  std::shared_ptr<Word> word_;
};

// Whether a change of an instance's dict by its attributes is told of. `detached`: of one whose values lie in the dict.
bool attributes_tell(bool detached) {
  if (DictVersion::watcher() < 0) return false;
  Ref arguments = Ref::steal(Py_BuildValue("(s(){})", "probe")), one = Ref::steal(PyLong_FromLong(1000001));
  Ref cls = arguments ? Ref::steal(PyObject_Call((PyObject*)&PyType_Type, arguments.get(), nullptr)) : Ref();
  Ref object = cls ? Ref::steal(PyObject_CallNoArgs(cls.get())) : Ref();
  bool ok = false;
  if (object && one && PyObject_SetAttrString(object.get(), "a", Py_None) == 0) {
    PyObject** place = _PyObject_GetDictPtr(object.get());
    if (place && *place) {
      DictVersion version(*place, detached);
      auto changes = [&](const char* name) {
        uint64_t before = *version.word();
        return PyObject_SetAttrString(object.get(), name, one.get()) == 0 && *version.word() != before;
      };
      bool written = changes("a"), added = changes("b");
      ok = written && added;
    }
  }
  if (PyErr_Occurred()) PyErr_Clear();
  return ok;
}

// CPython 3.13.0 keeps changes of values that lie in an instance, and not in its dict, to itself.
bool DictVersion::inline_values_tell() {
  static bool tell = attributes_tell(false);
  return tell;
}

bool dict_versions_tell() {
  static bool tell = DictVersion::inline_values_tell() || attributes_tell(true);
  return tell;
}

// Whether the dicts that have words are as they were where this number is: it counts their changes.
constexpr bool kDictsCounted = true;
uint64_t dict_changes() { return DictVersion::changes(); }

#endif

}  // namespace
}  // namespace jit
