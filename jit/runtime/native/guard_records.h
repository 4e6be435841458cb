// The records of a guard program in native form. What there is to know of a kind of record is one entry of a table:
// guard_accessors.h, guard_checks.h.
#pragma once

#include <memory>
#include <vector>

#include "guard_tensor.h"
#include "regs.h"

namespace jit {
namespace {

class Evaluator;
struct Parser;
struct Accessor;
struct Check;

// Accessors that the evaluator itself serves, and Weak, whose object a program must not keep alive.
enum class Role : uint8_t { kStep, kLocal, kConst, kWeak, kWatched };

struct AccessorKind {
  const char* name;
  Role role;
  bool watchable;  // whether a change of what is read can be seen; else it is read on every call
  // Takes the payload of a record; null where there is nothing to take.
  void (*parse)(Parser&, Accessor&, PyObject* payload);
  // What it reads from its parent's object: a new reference, or null, when an error may be set.
  PyObject* (*reach)(Evaluator&, const Accessor&, PyObject* parent);
};

// In the mixed section: what the watched section has read.
const AccessorKind kWatched{"watched", Role::kWatched, true, nullptr, nullptr};

struct Accessor {
  const AccessorKind* kind = nullptr;
  int32_t parent = -1;
  int64_t index = 0;  // local, closure, list item, function field, or the index in the watched section
  Ref payload;
  Py_hash_t hash = -1;  // of a str or int payload
};

struct CheckKind {
  const char* name;
  bool of_object;  // whether it is a fact of an object that an accessor reaches
  bool watchable;  // whether its answer stays as long as what it has read does
  void (*parse)(Parser&, Check&, PyObject* payload);
  bool (*holds)(Evaluator&, const Check&, PyObject* object);
  bool of_absent = false;  // whether it is asked as well, with null, where the accessor reaches nothing
};

struct DimsCheck {
  std::vector<int32_t> accessors;
  std::vector<Reg> regs;
  enum Relation : uint8_t { EQ, NE, GE, GT, LE, LT };
  std::vector<std::pair<int32_t, Relation>> conditions;
};

struct Check {
  const CheckKind* kind = nullptr;
  int32_t accessor = -1, other = -1;
  int64_t number = 0, second = 0;
  Ref payload;
  Py_hash_t hash = -1;
  std::shared_ptr<const TensorSpec> tensor;
  std::shared_ptr<const GlobalState> state;
  std::shared_ptr<DimsCheck> dims;
  std::vector<int32_t> group;  // of apart: the accessors, the first `number` of them being what is changed
  int32_t original = -1;       // index in the list the program was made from
};

struct Section {
  std::vector<Accessor> accessors;
  std::vector<Check> checks;
};

}  // namespace
}  // namespace jit
