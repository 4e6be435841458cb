// From Python records to sections: checks on locals, watched facts, and checks that mix both or cannot be watched.
#pragma once

#include "guard_program.h"

namespace jit {
namespace {

struct Parser {
  PyObject* on_death;  // called with a weak reference whose object has died
  Section all;
  TensorSpecs specs;
  std::vector<bool> local_rooted, unwatchable;
  std::vector<Ref> tensors, callbacks;  // see Program
  bool dead = false;         // something that is referred to weakly is gone

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
      case A::Weak: a.payload = weak_check(payload) ? loosely(payload) : Ref::steal(checked(PyWeakref_NewRef(payload, on_death))); break;
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
        a.hash = hash_of(payload);
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
    unwatchable.push_back((!root && unwatchable[a.parent]) || a.kind == A::GetAttr || a.kind == A::Grad || a.kind == A::IteratorState || a.kind == A::GeneratorState || a.kind == A::Length || a.kind == A::ContextValue || a.kind == A::Returned ||
                          kind.rfind("fresh_", 0) == 0);
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
      case C::Is:
        if (!weak_check(payload)) break;
        c.kind = C::IsWeak;
        c.payload = loosely(payload);
        break;
      case C::At: {
        Items pair(payload, "an address and a type");
        c.number = as_int(pair[0], "an address");
        c.payload = Ref::share(pair[1]);
        break;
      }
      case C::Len: c.number = as_int(payload, "len"); break;
      case C::Truth: c.number = PyObject_IsTrue(payload); break;
      case C::Subclass:
      case C::Instance: {
        Items pair(payload, "a class and whether");
        c.payload = Ref::share(pair[0]);
        c.number = PyObject_IsTrue(pair[1]);
        break;
      }
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
        c.hash = hash_of(c.payload.get());
        break;
      case C::Tensor: c.tensor = specs.parse(payload); break;
      case C::Same:
      case C::Distinct:
      case C::NoAlias: c.other = index(payload, "the other side of a check"); break;
      case C::Apart: {
        Items sides(payload, "apart");
        for (int side = 0; side < 2; ++side) {
          Items accessors(sides[side], "the accessors of apart");
          for (Py_ssize_t i = 0; i < accessors.size; ++i) c.group.push_back(index(accessors[i], "apart"));
          if (side == 0) c.number = accessors.size;
        }
        break;
      }
      case C::Shares: {
        Items pair(payload, "shares");
        c.other = index(pair[0], "the other side of a check");
        c.number = as_int(pair[1], "a distance in bytes");
        break;
      }
      case C::Room: {
        Items pair(payload, "room");
        c.number = as_int(pair[0], "a number of bytes");
        c.second = as_int(pair[1], "a number of bytes");
        break;
      }
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
      used.insert(used.end(), c.group.begin(), c.group.end());
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
      } else if (any_local || any_unwatchable || c.kind == C::Dims || c.kind == C::NoAlias || c.kind == C::Apart || c.kind == C::Shares || c.kind == C::Room) {
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
      for (int32_t& i : c.group) i = move(i);
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
    for (size_t i = 0; i < p.mixed.accessors.size(); ++i)
      if (p.mixed.accessors[i].kind == A::Watched) p.mixed_watched.push_back((int32_t)i);
    p.tensors = std::move(tensors);
    p.callbacks = std::move(callbacks);
    p.cleared = dead;
    p.all = std::move(all);
  }
};

}  // namespace
}  // namespace jit
