// The records of a guard program in native form.
#pragma once

#include <memory>
#include <vector>

#include "guard_tensor.h"
#include "regs.h"

namespace jit {
namespace {

enum class A : uint8_t { Local, Const, Weak, Watched, DictAttr, GetAttr, TypeAttr, ClassAttr, Type, Item, Cell, Closure, Function, Dict, Grad, Wrapped, IteratorState, GeneratorState, Length, ContextValue, Returned, Mro, CacheLink };
enum class C : uint8_t { TypeIs, Is, IsNot, Eq, Len, DictKeys, DictLacks, NoDictAttr, TypeLacks, ClassLacks, Tensor, Truth, Same, Distinct, NoAlias, Apart, Shares, Room, GlobalState, Dims, Elements, Subclass, Instance, IsWeak, At };

const std::pair<const char*, A> kAccessors[] = {
    {"local", A::Local}, {"const", A::Const}, {"weak", A::Weak}, {"dict_attr", A::DictAttr}, {"getattr", A::GetAttr}, {"type_attr", A::TypeAttr}, {"class_attr", A::ClassAttr}, {"type", A::Type},
    {"item", A::Item}, {"cell", A::Cell}, {"closure", A::Closure}, {"function", A::Function}, {"dict", A::Dict}, {"grad", A::Grad}, {"wrapped", A::Wrapped}, {"iterator_state", A::IteratorState},
    {"generator_state", A::GeneratorState}, {"length", A::Length}, {"returned", A::Returned}, {"context_value", A::ContextValue}, {"mro", A::Mro}, {"cache_link", A::CacheLink}, {"fresh_attr", A::DictAttr}, {"fresh_item", A::Item}, {"fresh_cell", A::Cell}};
const std::pair<const char*, C> kChecks[] = {
    {"type_is", C::TypeIs}, {"is", C::Is}, {"is_not", C::IsNot}, {"eq", C::Eq}, {"len", C::Len}, {"dict_keys", C::DictKeys}, {"elements", C::Elements}, {"dict_lacks", C::DictLacks}, {"no_dict_attr", C::NoDictAttr},
    {"type_lacks", C::TypeLacks}, {"class_lacks", C::ClassLacks}, {"tensor", C::Tensor}, {"truth", C::Truth}, {"same", C::Same}, {"distinct", C::Distinct}, {"no_alias", C::NoAlias}, {"apart", C::Apart}, {"shares", C::Shares}, {"room", C::Room}, {"global_state", C::GlobalState}, {"dims", C::Dims}, {"subclass", C::Subclass}, {"instance", C::Instance}, {"at", C::At}};

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
  int64_t number = 0, second = 0;
  Ref payload;
  Py_hash_t hash = -1;
  std::shared_ptr<const TensorSpec> tensor;
  std::shared_ptr<const GlobalState> state;
  std::shared_ptr<DimsCheck> dims;
  std::vector<int32_t> group;  // of apart: the accessors, the first `number` of them being what is changed
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

}  // namespace
}  // namespace jit
