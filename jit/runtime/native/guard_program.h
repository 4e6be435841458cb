// A guard program: its sections, the snapshot of the last walk, and the plan whose bound inputs follow it.
#pragma once

#include "guard_arguments.h"
#include "plan.h"

namespace jit {
namespace {

struct Program {
  Section all, locals, watched, mixed;             // all: as given, for explanations
  std::vector<ArgumentFacts> arguments;            // parts of what `locals` would hold
  std::vector<std::pair<int32_t, int32_t>> binds;  // (accessor of `watched`, plan input)
  std::vector<int32_t> bind_inputs;
  std::shared_ptr<Snapshot> snapshot;  // null: not verified
  int32_t last_failed = -1;            // check of `watched` that failed last
  Ref plan;
  std::vector<int32_t> mixed_watched;  // accessors of `mixed` that refer to `watched`
  std::vector<Ref> tensors;            // Weaks of tensors without which it never matches again
  std::vector<Ref> callbacks;          // weak references to other such objects, which release the program
  bool cleared = false;                // by the garbage collector, or because what it refers to weakly died
  uint64_t walks = 0;

  bool check(PyObject* const* args, Py_ssize_t n) {
    if (cleared) return false;
    if (!locals.checks.empty()) {
      Evaluator e(locals, args, n, nullptr, nullptr);
      for (const Check& c : locals.checks)
        if (!e.check(c)) return false;
    }
    for (ArgumentFacts& facts : arguments)
      if (!facts.hold(args, n)) return false;
    if (!watched.accessors.empty() && !verify()) return false;
    if (!mixed.checks.empty()) {
      std::shared_ptr<Snapshot> keep = snapshot;
      std::vector<Ref> passing;
      if (keep) passing.swap(keep->passing);
      Evaluator e(mixed, args, n, keep ? keep->values.data() : nullptr, nullptr);
      e.read(mixed_watched);
      for (const Check& c : mixed.checks)
        if (!e.check(c)) return false;
    } else if (snapshot && !snapshot->passing.empty()) {
      std::vector<Ref> passing;
      passing.swap(snapshot->passing);
    }
    return true;
  }

  bool verify() {
    if (std::shared_ptr<Snapshot> s = snapshot)
      if (unchanged(s)) return s->every_call.empty() || unsteady_hold(*s);
    return walk();
  }

  // The checks that cannot be watched, on the values that could.
  bool unsteady_hold(const Snapshot& s) {
    Evaluator e(watched, nullptr, 0, nullptr, nullptr, &s);
    e.read(s.anchors);
    for (int32_t i : s.every_call)
      if (!e.check(watched.checks[i])) return false;
    return true;
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
          fresh->values.push_back(o);
          if (!fresh->unsteady[i]) continue;
          fresh->passing.push_back(Ref::share(o));
          int32_t parent = watched.accessors[i].parent;
          if (parent >= 0 && !fresh->unsteady[parent]) fresh->anchors.push_back(parent);
        }
        for (int32_t i : fresh->every_call)
          for (int32_t side : {watched.checks[i].accessor, watched.checks[i].other})
            if (side >= 0 && !fresh->unsteady[side]) fresh->anchors.push_back(side);
        for (auto [accessor, input] : binds) fresh->steady &= !fresh->unsteady[accessor];
        for (const Accessor& a : mixed.accessors)
          if (a.kind == &kWatched) fresh->steady &= !fresh->unsteady[a.index];
        ok = rebind(*fresh);
        if (ok) fresh->seal();
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

  // Gives the plan the tensors that the walk found.
  bool rebind(Snapshot& fresh) {
    if (binds.empty()) return true;
    std::vector<PyObject*> tensors;
    for (auto [accessor, input] : binds) {
      PyObject* o = fresh.values[accessor];
      if (!is_tensor(o)) return false;
      tensors.push_back(o);
    }
    if (!plan) return true;
    if (!plan_rebind(plan.get(), (Py_ssize_t)tensors.size(), bind_inputs.data(), tensors.data())) {
      PyErr_Clear();
      return false;
    }
    return true;
  }

  // Whether it can never match again.
  bool is_dead() {
    if (cleared) return true;
    for (const Ref& weak : tensors)
      if (weak_gone(weak.get())) {
        release();
        return true;
      }
    return false;
  }

  // A weak root, or an object that a fact names weakly, died: this program can never match again.
  void release() {
    cleared = true;
    std::shared_ptr<Snapshot> old = std::move(snapshot);
    snapshot.reset();
    if (old) old->dead = true;
    for (ArgumentFacts& facts : arguments) facts.release();
    Ref p = std::move(plan);
    plan.reset();
    if (p) plan_unbind(p.get());
  }

  template <typename F>
  int visit_refs(F f) {
    std::vector<Section*> sections{&all, &locals, &watched, &mixed};
    for (ArgumentFacts& facts : arguments) sections.push_back(&facts.section);
    for (Section* s : sections) {
      for (auto& a : s->accessors)
        if (int r = f(a.payload.get())) return r;
      for (auto& c : s->checks)
        if (int r = f(c.payload.get())) return r;
    }
    if (int r = f(plan.get())) return r;
    if (snapshot && snapshot.use_count() == 1)
      if (int r = snapshot->visit_refs(f)) return r;
    for (ArgumentFacts& facts : arguments)
      if (int r = facts.visit_refs(f)) return r;
    return 0;
  }
};

}  // namespace
}  // namespace jit
