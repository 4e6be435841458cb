// Facts about an argument that comes again: a module that a function is given, or that a method is called on.
#pragma once

#include "guard_walk.h"

namespace jit {
namespace {

// The facts that are reached from one argument by steps that can be watched. For an object that has been seen before,
// a walk notes what it reads, as for facts that are reached from known objects, and the next call looks at that.
class ArgumentFacts {
 public:
  // Fewer checks than these are made on each call.
  static constexpr int kFewest = 12;

  int64_t local = 0;  // index among the locals
  Section section;

  bool hold(PyObject* const* args, Py_ssize_t n) {
    PyObject* o = local < n ? args[local] : nullptr;
    if (!o || is_tensor(o) || !PyType_SUPPORTS_WEAKREFS(Py_TYPE(o)) || !dict_versions_tell())
      return made(args, n, nullptr);
    Known* known = find(o);
    if (!known) {
      if (++strangers_ <= kStrangers || strangers_ % kStrangers == 0) add(o);
      return made(args, n, nullptr);
    }
    strangers_ = 0;
    if (std::shared_ptr<Snapshot> snapshot = known->snapshot) {
      if (unchanged(snapshot)) return true;
      if (!(known = find(o))) return made(args, n, nullptr);  // code of the program's may have run
      known->snapshot.reset();
      known->wait = known->patience = std::min(2 * known->patience, kMostPatience);
    }
    if (known->wait > 0) {
      --known->wait;
      return made(args, n, nullptr);
    }
    auto fresh = std::make_shared<Snapshot>();
    if (!made(args, n, fresh.get())) return false;
    if (fresh->every_call.empty() && !fresh->any_unsteady()) {
      fresh->seal();
      if ((known = find(o)) && fresh->steady) known->snapshot = std::move(fresh);
    }
    return true;
  }

  // Forgets all objects.
  void release() {
    auto old = std::move(known_);
    known_.clear();
    for (auto& [o, known] : old)
      if (known.snapshot) known.snapshot->dead = true;
  }

  size_t watched() const {
    size_t n = 0;
    for (const auto& [o, known] : known_) n += known.snapshot != nullptr;
    return n;
  }

  template <typename F>
  int visit_refs(F f) {
    for (auto& [o, known] : known_)
      if (known.snapshot && known.snapshot.use_count() == 1)
        if (int r = known.snapshot->visit_refs(f)) return r;
    return 0;
  }

 private:
  static constexpr size_t kMost = 512;        // objects that are known at a time
  static constexpr uint32_t kStrangers = 64;  // after so many that were new in a row, only some are noted
  static constexpr int kMostPatience = 1024;

  struct Known {
    Ref weak;
    int wait = 0, patience = 1;  // calls until what is read is noted again
    std::shared_ptr<Snapshot> snapshot;
  };

  Known* find(PyObject* o) {
    auto at = known_.find(o);
    if (at == known_.end()) return nullptr;
    if (weak_is(at->second.weak.get(), o)) return &at->second;
    known_.erase(at);
    return nullptr;
  }

  void add(PyObject* o) {
    if (known_.size() >= kMost) {
      for (auto at = known_.begin(); at != known_.end();)
        at = weak_gone(at->second.weak.get()) ? known_.erase(at) : std::next(at);
      if (known_.size() >= kMost) known_.clear();
    }
    Ref weak = Ref::steal(weak_new(o));
    if (!weak) {
      PyErr_Clear();
      return;
    }
    known_[o].weak = std::move(weak);
  }

  // Makes the checks, the one that failed last time first.
  bool made(PyObject* const* args, Py_ssize_t n, Snapshot* record) {
    Evaluator e(section, args, n, nullptr, record);
    if (last_failed_ < section.checks.size() && !e.check(section.checks[last_failed_])) return false;
    for (size_t i = 0; i < section.checks.size(); ++i) {
      if (e.check(section.checks[i])) continue;
      last_failed_ = i;
      return false;
    }
    last_failed_ = SIZE_MAX;
    return true;
  }

  size_t last_failed_ = SIZE_MAX;
  uint32_t strangers_ = 0;
  std::unordered_map<PyObject*, Known> known_;
};

}  // namespace
}  // namespace jit
