// From Python records to sections: checks on locals, watched facts, and checks that mix both or cannot be watched.
#pragma once

#include "guard_program.h"

namespace jit {
namespace {

const AccessorKind* accessor_kind(const std::string& name);  // null: there is none
const CheckKind* check_kind(const std::string& name);

constexpr char kFresh[] =
    "fresh_";  // before the name of an accessor: what is replaced all the time, and is read on every call

// An attribute's name.
Ref interned(PyObject* payload) {
  if (!PyUnicode_CheckExact(payload)) raise(PyExc_TypeError, "an attribute's name has to be a str");
  PyObject* name = Py_NewRef(payload);
  PyUnicode_InternInPlace(&name);
  return Ref::steal(name);
}

struct Parser {
  PyObject* on_death;  // called with a weak reference whose object has died
  Section all;
  TensorSpecs specs;
  std::vector<bool> local_rooted, unwatchable;
  std::vector<int32_t> roots;           // per accessor: the one that has no parent
  std::vector<Ref> tensors, callbacks;  // see Program
  bool dead = false;                    // something that is referred to weakly is gone

  // A Weak whose object the program needs: when that dies, the program is told, or asks where it is a tensor.
  Ref loosely(PyObject* weak) {
    Ref object = Ref::steal(weak_get(weak));
    if (!object) {
      dead = true;
    } else if (is_tensor(object.get())) {
      tensors.push_back(Ref::share(weak));
    } else {
      // The Weak stays what is compared with; this reference is there for its callback.
      callbacks.push_back(Ref::steal(checked(PyWeakref_NewRef(object.get(), on_death))));
    }
    return Ref::share(weak);
  }

  static Py_hash_t hash_of(PyObject* payload) {
    Ref key = key_of(payload);
    Py_hash_t hash = key ? PyObject_Hash(key.get()) : 0;
    if (hash == -1) throw PythonError();
    return hash;
  }

  void accessor(PyObject* record) {
    Items r(record, "an accessor");
    Accessor a{};
    a.parent = (int32_t)as_int(r[0], "an accessor's parent");
    std::string name = as_text(r[1], "an accessor's kind");
    bool fresh = name.rfind(kFresh, 0) == 0;
    a.kind = accessor_kind(fresh ? name.substr(sizeof(kFresh) - 1) : name);
    if (!a.kind) raise(PyExc_ValueError, "unknown accessor '" + name + "'");
    bool root = a.kind->role != Role::kStep;
    if (root != (a.parent < 0) || a.parent >= (int32_t)all.accessors.size())
      raise(PyExc_ValueError,
            "accessor " + std::to_string(all.accessors.size()) + " (" + name + ") has a wrong parent");
    PyObject* payload = r.size > 2 ? r[2] : Py_None;
    a.payload = Ref::share(payload);
    if (a.kind->parse) a.kind->parse(*this, a, payload);
    local_rooted.push_back(root ? a.kind->role == Role::kLocal : local_rooted[a.parent]);
    roots.push_back(root ? (int32_t)roots.size() : roots[a.parent]);
    unwatchable.push_back((!root && unwatchable[a.parent]) || !a.kind->watchable || fresh);
    all.accessors.push_back(std::move(a));
  }

  int32_t index(PyObject* o, const char* what) {
    int64_t i = as_int(o, what);
    if (i < 0 || (size_t)i >= all.accessors.size())
      raise(PyExc_ValueError, std::string(what) + ": accessor " + std::to_string(i) + " does not exist");
    return (int32_t)i;
  }

  void check(PyObject* record) {
    Items r(record, "a check");
    Check c{};
    std::string name = as_text(r[1], "a check's kind");
    c.kind = check_kind(name);
    if (!c.kind) raise(PyExc_ValueError, "unknown check '" + name + "'");
    if (c.kind->of_object) c.accessor = index(r[0], "a check");
    PyObject* payload = r.size > 2 ? r[2] : Py_None;
    c.payload = Ref::share(payload);
    c.original = (int32_t)all.checks.size();
    if (c.kind->parse) c.kind->parse(*this, c, payload);
    all.checks.push_back(std::move(c));
  }

  // Copies an accessor and its parents into a section. In the mixed section, what is watched is read from the snapshot.
  int32_t place(int32_t i, Section& section, std::vector<int32_t>& where, Section* watched,
                std::vector<int32_t>* watched_where) {
    if (where[i] >= 0) return where[i];
    Accessor a = all.accessors[i];
    if (watched && !local_rooted[i] && !unwatchable[i]) {
      int32_t source = place(i, *watched, *watched_where, nullptr, nullptr);
      a = Accessor{};
      a.kind = &kWatched;
      a.index = source;
    } else if (a.parent >= 0) {
      a.parent = place(a.parent, section, where, watched, watched_where);
    }
    section.accessors.push_back(std::move(a));
    return where[i] = (int32_t)section.accessors.size() - 1;
  }

  // The accessors of a check.
  static std::vector<int32_t> used_by(const Check& c) {
    std::vector<int32_t> used;
    if (c.accessor >= 0) used.push_back(c.accessor);
    if (c.other >= 0) used.push_back(c.other);
    used.insert(used.end(), c.group.begin(), c.group.end());
    if (c.dims) used.insert(used.end(), c.dims->accessors.begin(), c.dims->accessors.end());
    return used;
  }

  // The root of a check that can be watched as soon as its argument is known, and of which all is reached from that
  // argument; -1 for other checks.
  int32_t argument_of(const Check& c) const {
    std::vector<int32_t> used = used_by(c);
    if (used.empty() || !c.kind->watchable) return -1;
    int32_t root = roots[used[0]];
    bool below = false;
    for (int32_t i : used) {
      if (!local_rooted[i] || unwatchable[i] || roots[i] != root) return -1;
      below |= i != root;
    }
    return below ? root : -1;
  }

  void split(Program& p, PyObject* binds) {
    size_t n = all.accessors.size();
    std::vector<int32_t> in_locals(n, -1), in_watched(n, -1), in_mixed(n, -1);
    std::vector<int> of_argument(n, 0);
    std::vector<std::pair<ArgumentFacts, std::vector<int32_t>>> arguments;
    std::vector<int> argument(n, -1);  // by root: which of them
    for (const Check& c : all.checks)
      if (int32_t root = argument_of(c); root >= 0 && ++of_argument[root] == ArgumentFacts::kFewest) {
        argument[root] = (int)arguments.size();
        arguments.emplace_back(ArgumentFacts(), std::vector<int32_t>(n, -1));
        arguments.back().first.local = all.accessors[root].index;
      }
    for (const Check& original : all.checks) {
      Check c = original;
      std::vector<int32_t> used = used_by(c);
      bool any_local = false, any_const = false, any_unwatchable = false;
      for (int32_t i : used) {
        any_local |= local_rooted[i];
        any_const |= !local_rooted[i];
        any_unwatchable |= unwatchable[i];
      }
      Section* section;
      std::vector<int32_t>* where;
      int32_t root = argument_of(c);
      if (root >= 0 && argument[root] >= 0) {
        section = &arguments[argument[root]].first.section;
        where = &arguments[argument[root]].second;
      } else if (!any_const) {
        section = &p.locals;
        where = &in_locals;
      } else if (any_local || any_unwatchable || !c.kind->watchable) {
        section = &p.mixed;
        where = &in_mixed;
      } else {
        section = &p.watched;
        where = &in_watched;
      }
      bool mixed = section == &p.mixed;
      auto move = [&](int32_t i) {
        return place(i, *section, *where, mixed ? &p.watched : nullptr, mixed ? &in_watched : nullptr);
      };
      if (c.accessor >= 0) c.accessor = move(c.accessor);
      if (c.other >= 0) c.other = move(c.other);
      for (int32_t& i : c.group) i = move(i);
      if (c.dims) {
        c.dims = std::make_shared<DimsCheck>(*c.dims);
        for (int32_t& i : c.dims->accessors) i = move(i);
      }
      section->checks.push_back(std::move(c));
    }
    for (auto& [facts, where] : arguments) p.arguments.push_back(std::move(facts));
    Items list(binds, "binds");
    for (Py_ssize_t i = 0; i < list.size; ++i) {
      Items pair(list[i], "a bind");
      int32_t accessor = index(pair[0], "a bind");
      if (local_rooted[accessor] || unwatchable[accessor])
        raise(PyExc_ValueError,
              "bind: accessor " + std::to_string(accessor) + " is not reached from a constant by watchable steps");
      p.binds.push_back(
          {place(accessor, p.watched, in_watched, nullptr, nullptr), (int32_t)as_int(pair[1], "a bind's input")});
      p.bind_inputs.push_back(p.binds.back().second);
    }
    for (size_t i = 0; i < p.mixed.accessors.size(); ++i)
      if (p.mixed.accessors[i].kind == &kWatched) p.mixed_watched.push_back((int32_t)i);
    p.tensors = std::move(tensors);
    p.callbacks = std::move(callbacks);
    p.cleared = dead;
    p.all = std::move(all);
  }
};

}  // namespace
}  // namespace jit
