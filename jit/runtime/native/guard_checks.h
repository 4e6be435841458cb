// What guards can find of objects: each check is an entry of the table at the end, with how its payload is taken and
// when it holds.
//
// jit/runtime/guards.py says what each is.
#pragma once

#include <algorithm>

#include "guard_parse.h"
#include "guard_walk.h"
#include "numbers.h"

namespace jit {
namespace {

// payloads

void take_type(Parser&, Check&, PyObject* payload) {
  if (!PyType_Check(payload)) raise(PyExc_TypeError, "type_is takes a type");
}

void take_object(Parser& parser, Check& c, PyObject* payload) {
  if (weak_check(payload)) c.payload = parser.loosely(payload);
}

void take_place(Parser&, Check& c, PyObject* payload) {
  Items pair(payload, "an address and a type");
  c.number = as_int(pair[0], "an address");
  c.payload = Ref::share(pair[1]);
}

void take_number(Parser&, Check& c, PyObject* payload) { c.number = as_int(payload, "a number"); }

void take_truth(Parser&, Check& c, PyObject* payload) { c.number = PyObject_IsTrue(payload); }

void take_class(Parser&, Check& c, PyObject* payload) {
  Items pair(payload, "a class and whether");
  c.payload = Ref::share(pair[0]);
  c.number = PyObject_IsTrue(pair[1]);
}

void take_elements(Parser&, Check& c, PyObject* payload) { c.payload = Ref::steal(checked(PySequence_Tuple(payload))); }

void take_key(Parser& parser, Check& c, PyObject* payload) { c.hash = parser.hash_of(payload); }

void take_name(Parser& parser, Check& c, PyObject* payload) {
  c.payload = interned(payload);
  c.hash = parser.hash_of(c.payload.get());
}

void take_tensor(Parser& parser, Check& c, PyObject* payload) { c.tensor = parser.specs.parse(payload); }

void take_other(Parser& parser, Check& c, PyObject* payload) {
  c.other = parser.index(payload, "the other side of a check");
}

void take_sides(Parser& parser, Check& c, PyObject* payload) {
  Items sides(payload, "apart");
  for (int side = 0; side < 2; ++side) {
    Items accessors(sides[side], "the accessors of apart");
    for (Py_ssize_t i = 0; i < accessors.size; ++i) c.group.push_back(parser.index(accessors[i], "apart"));
    if (side == 0) c.number = accessors.size;
  }
}

void take_distance(Parser& parser, Check& c, PyObject* payload) {
  Items pair(payload, "shares");
  c.other = parser.index(pair[0], "the other side of a check");
  c.number = as_int(pair[1], "a distance in bytes");
}

void take_room(Parser&, Check& c, PyObject* payload) {
  Items pair(payload, "room");
  c.number = as_int(pair[0], "a number of bytes");
  c.second = as_int(pair[1], "a number of bytes");
}

void take_state(Parser&, Check& c, PyObject* payload) { c.state = parse_global_state(payload); }

void take_dims(Parser& parser, Check& c, PyObject* payload) {
  Items t(payload, "dims");
  auto d = std::make_shared<DimsCheck>();
  Items accessors(t[0], "the accessors of dims");
  for (Py_ssize_t i = 0; i < accessors.size; ++i) d->accessors.push_back(parser.index(accessors[i], "dims"));
  d->regs = parse_regs(t[1], (int)d->accessors.size(), (int)d->accessors.size());
  static const std::pair<const char*, DimsCheck::Relation> relations[] = {
      {"==0", DimsCheck::EQ}, {"!=0", DimsCheck::NE}, {">=0", DimsCheck::GE},
      {">0", DimsCheck::GT},  {"<=0", DimsCheck::LE}, {"<0", DimsCheck::LT}};
  Items conditions(t[2], "the conditions of dims");
  for (Py_ssize_t i = 0; i < conditions.size; ++i) {
    Items pair(conditions[i], "a condition of dims");
    int64_t reg = as_int(pair[0], "a condition's register");
    if (reg < 0 || (size_t)reg >= d->regs.size())
      raise(PyExc_ValueError, "dims: register " + std::to_string(reg) + " does not exist");
    std::string text = as_text(pair[1], "a condition's relation");
    bool found = false;
    for (auto& [name, code] : relations) {
      if (text != name) continue;
      d->conditions.push_back({(int32_t)reg, code});
      found = true;
    }
    if (!found) raise(PyExc_ValueError, "dims: unknown relation '" + text + "'");
  }
  c.dims = std::move(d);
}

void take_numbers(Parser& parser, Check& c, PyObject* payload) {
  Items pair(payload, "numbers");
  if (!numbers_check(pair[0])) raise(PyExc_TypeError, "numbers takes a program of numbers");
  Items accessors(pair[1], "the accessors of numbers");
  for (Py_ssize_t i = 0; i < accessors.size; ++i) c.group.push_back(parser.index(accessors[i], "numbers"));
  if (numbers_arguments(pair[0]) != accessors.size) raise(PyExc_ValueError, "numbers: one accessor for each argument");
  c.payload = Ref::share(pair[0]);
}

// whether they hold

bool holds_type_is(Evaluator& e, const Check& c, PyObject* o) {
  if ((PyObject*)Py_TYPE(o) != c.payload.get()) return false;
  if (e.record()) e.record()->object_type(o);
  return true;
}

bool holds_is(Evaluator&, const Check& c, PyObject* o) {
  return o == c.payload.get() || (weak_check(c.payload.get()) && weak_is(c.payload.get(), o));
}

bool holds_is_not(Evaluator&, const Check& c, PyObject* o) { return o != c.payload.get(); }

bool holds_at(Evaluator&, const Check& c, PyObject* o) {
  return reinterpret_cast<uintptr_t>(o) == (uintptr_t)c.number && (PyObject*)Py_TYPE(o) == c.payload.get();
}

bool holds_eq(Evaluator&, const Check& c, PyObject* o) { return const_equal(c.payload.get(), o); }

bool holds_type_lacks(Evaluator& e, const Check& c, PyObject* o) {
  if (_PyType_Lookup(Py_TYPE(o), c.payload.get())) return false;
  if (e.record()) {
    e.record()->object_type(o);
    e.record()->type(Py_TYPE(o), c.payload.get(), nullptr);
  }
  return true;
}

bool holds_class_lacks(Evaluator& e, const Check& c, PyObject* o) {
  if (!PyType_Check(o) || _PyType_Lookup(reinterpret_cast<PyTypeObject*>(o), c.payload.get())) return false;
  if (e.record()) e.record()->type(reinterpret_cast<PyTypeObject*>(o), c.payload.get(), nullptr);
  return true;
}

bool holds_tensor(Evaluator& e, const Check& c, PyObject* o) {
  if (!tensor_matches(*c.tensor, o)) return false;
  if (e.record()) e.record()->tensors.push_back(watch_tensor(o, c.tensor.get()));
  return true;
}

bool holds_same(Evaluator& e, const Check& c, PyObject* o) { return o == e.get(c.other); }

// What is not there, such as the dict of an instance that has no attributes yet, is no other object.
bool holds_distinct(Evaluator& e, const Check& c, PyObject* o) {
  PyObject* other = e.get(c.other);
  return !o || !other || o != other;
}

bool holds_no_alias(Evaluator& e, const Check& c, PyObject* o) {
  PyObject* other = e.get(c.other);
  return other && !tensors_overlap(o, other);
}

bool holds_shares(Evaluator& e, const Check& c, PyObject* o) {
  PyObject* other = e.get(c.other);
  return other && tensor_distance(o, other) == c.number;
}

bool holds_room(Evaluator&, const Check& c, PyObject* o) { return tensor_has_room(o, c.number, c.second); }

bool holds_state(Evaluator&, const Check& c, PyObject*) { return global_state_matches(*c.state); }

// What issubclass() says of a class. Its answer stays until the class gets other bases or an abstract class another
// registered one.
bool holds_subclass(Evaluator& e, const Check& c, PyObject* o) {
  if (!PyType_Check(o)) return false;
  int found = PyObject_IsSubclass(o, c.payload.get());
  if (found < 0) PyErr_Clear();
  if (e.record()) {
    e.record()->pointer(&reinterpret_cast<PyTypeObject*>(o)->tp_mro);
    e.record()->abstract_classes = abstract_class_registrations();
    e.record()->reads_abstract_classes = true;
  }
  return found == c.number;
}

// What isinstance() says of an object by whatever the class looks at.
bool holds_instance(Evaluator& e, const Check& c, PyObject* o) {
  e.volatile_read();
  int found = PyObject_IsInstance(o, c.payload.get());
  if (found < 0) PyErr_Clear();
  return found == c.number;
}

bool holds_length(Evaluator& e, const Check& c, PyObject* o) {
  if (PyDict_Check(o)) {
    if (PyDict_GET_SIZE(o) != c.number) return false;
    if (e.record()) e.record()->dict_length(o);
    return true;
  }
  if (PyList_Check(o)) {
    if (e.record()) e.record()->sequence(o);
    return PyList_GET_SIZE(o) == c.number;
  }
  if (PyTuple_Check(o)) return PyTuple_GET_SIZE(o) == c.number;
  e.volatile_read();
  Py_ssize_t n = PyObject_Size(o);
  if (n < 0) PyErr_Clear();
  return n == c.number;
}

// A tuple of what a container of a subclass of `base` gives when it is iterated in base's way; null if that fails.
Ref contents(PyObject* o, PyTypeObject& base) {
  Ref steps = Ref::steal(base.tp_iter(o));
  return steps ? Ref::steal(PySequence_Tuple(steps.get())) : Ref();
}

// The elements of a set, in the order of iteration.
bool holds_elements(Evaluator& e, const Check& c, PyObject* o) {
  if (!PyAnySet_Check(o) || PySet_GET_SIZE(o) != PyTuple_GET_SIZE(c.payload.get())) return false;
  if (!PyFrozenSet_CheckExact(o)) e.volatile_read();
  Ref now = contents(o, PySet_Type);
  if (!now) PyErr_Clear();
  return now && const_equal(c.payload.get(), now.get());
}

bool holds_dict_keys(Evaluator& e, const Check& c, PyObject* o) {
  if (!PyDict_Check(o)) return false;
  if (!PyODict_Check(o)) {
    if (!keys_are(o, c.payload.get())) return false;
    if (e.record()) e.record()->dict_keys(o, c.payload.get());
    return true;
  }
  if (PyTuple_GET_SIZE(c.payload.get()) == 0) {
    if (PyDict_GET_SIZE(o) != 0) return false;
    if (e.record()) e.record()->dict_length(o);
    return true;
  }
  // An OrderedDict has an order of its own, which changes without a change of the dict.
  e.volatile_read();
  Ref keys = contents(o, PyODict_Type);
  if (!keys) PyErr_Clear();
  return keys && const_equal(c.payload.get(), keys.get());
}

bool holds_dict_lacks(Evaluator& e, const Check& c, PyObject* o) {
  if (!PyDict_Check(o)) return false;
  return !e.lookup(o, c.payload.get(), c.hash);
}

bool holds_no_dict_attr(Evaluator& e, const Check& c, PyObject* o) {
  if (PyType_Check(o)) return false;
  PyObject* d = e.instance_dict(o);
  return !d || (!e.record() && PyDict_GET_SIZE(d) == 0) || !e.lookup(d, c.payload.get(), c.hash);
}

int truth(Evaluator& e, PyObject* o) {
  if (o == Py_True) return 1;
  if (o == Py_False || o == Py_None) return 0;
  if (!(PyLong_CheckExact(o) || PyUnicode_CheckExact(o) || PyFloat_CheckExact(o) || PyTuple_CheckExact(o) ||
        PyBytes_CheckExact(o))) {
    if (PyList_CheckExact(o) && e.record()) {
      e.record()->sequence(o);
    } else if (plain_length(o) && !(Py_TYPE(o)->tp_as_number && Py_TYPE(o)->tp_as_number->nb_bool) && e.record()) {
      e.record()->dict_length(o);
    } else {
      e.volatile_read();
    }
  }
  int t = PyObject_IsTrue(o);
  if (t < 0) PyErr_Clear();
  return t;
}

bool holds_truth(Evaluator& e, const Check& c, PyObject* o) { return truth(e, o) == c.number; }

// Whether no changed tensor reaches into the memory of another one: a sweep over the memory in order.
bool holds_apart(Evaluator& e, const Check& c, PyObject*) {
  struct Extent {
    uintptr_t begin, end;
    bool changed;
  };
  constexpr size_t kInline = 48;
  Extent inline_extents[kInline];
  std::unique_ptr<Extent[]> heap;
  if (c.group.size() > kInline) heap.reset(new Extent[c.group.size()]);
  Extent *first = heap ? heap.get() : inline_extents, *last = first;
  for (size_t i = 0; i < c.group.size(); ++i) {
    PyObject* o = e.get(c.group[i]);
    Extent x{0, 0, i < (size_t)c.number};
    if (!o || !tensor_extent(o, &x.begin, &x.end)) return false;
    if (x.begin != x.end) *last++ = x;
  }
  std::sort(first, last, [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  uintptr_t end = 0, changed_end = 0;
  for (const Extent* at = first; at != last; ++at) {
    if (at->begin < (at->changed ? end : changed_end)) return false;
    end = std::max(end, at->end);
    if (at->changed) changed_end = std::max(changed_end, at->end);
  }
  return true;
}

bool holds_dims(Evaluator& e, const Check& c, PyObject*) {
  const DimsCheck& d = *c.dims;
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
      PyObject* o = e.get(d.accessors[r.a]);
      const int64_t *sizes, *strides;
      int64_t rank;
      if (!o || !tensor_layout(o, &sizes, &strides, &rank) || r.b >= rank) return false;
      v[i] = (r.op == Reg::kSize ? sizes : strides)[r.b];
    } else if (r.op == Reg::kInt) {
      PyObject* o = e.get(d.accessors[r.a]);
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

bool holds_numbers(Evaluator& e, const Check& c, PyObject*) {
  std::vector<PyObject*> arguments;
  for (int32_t accessor : c.group) {
    arguments.push_back(e.get(accessor));
    if (!arguments.back()) return false;
  }
  return numbers_hold(c.payload.get(), arguments.data());
}

bool holds_no_memory(Evaluator&, const Check&, PyObject* o) { return tensor_has_no_memory(o); }
bool holds_writable(Evaluator&, const Check&, PyObject* o) { return tensor_writable(o); }

// name, of an object, watchable, payload, whether it holds
const CheckKind kChecks[] = {
    {"type_is", true, true, take_type, holds_type_is},
    {"is", true, true, take_object, holds_is},
    {"is_not", true, true, nullptr, holds_is_not},
    {"at", true, true, take_place, holds_at},
    {"eq", true, true, nullptr, holds_eq},
    {"len", true, true, take_number, holds_length},
    {"truth", true, true, take_truth, holds_truth},
    {"dict_keys", true, true, take_elements, holds_dict_keys},
    {"elements", true, true, take_elements, holds_elements},
    {"dict_lacks", true, true, take_key, holds_dict_lacks},
    {"no_dict_attr", true, true, take_name, holds_no_dict_attr},
    {"type_lacks", true, true, take_name, holds_type_lacks},
    {"class_lacks", true, true, take_name, holds_class_lacks},
    {"subclass", true, true, take_class, holds_subclass},
    {"instance", true, true, take_class, holds_instance},
    {"tensor", true, true, take_tensor, holds_tensor},
    {"same", true, true, take_other, holds_same},
    {"distinct", true, true, take_other, holds_distinct, true},
    {"no_alias", true, false, take_other, holds_no_alias},
    {"apart", true, false, take_sides, holds_apart},
    {"shares", true, false, take_distance, holds_shares},
    {"room", true, false, take_room, holds_room},
    {"no_memory", true, false, nullptr, holds_no_memory},
    {"writable", true, false, nullptr, holds_writable},
    {"global_state", false, true, take_state, holds_state},
    {"dims", false, false, take_dims, holds_dims},
    {"numbers", false, false, take_numbers, holds_numbers},
};

const CheckKind* check_kind(const std::string& name) {
  for (const CheckKind& kind : kChecks)
    if (name == kind.name) return &kind;
  return nullptr;
}

}  // namespace
}  // namespace jit
