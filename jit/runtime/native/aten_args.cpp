#include "aten_args.h"

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/python_variable.h>

namespace jit {
namespace {

using c10::IValue;
using c10::TypeKind;
using c10::TypePtr;

TypePtr unwrap_optional(const TypePtr& t) {
  return t->kind() == TypeKind::OptionalType ? t->expectRef<c10::OptionalType>().getElementType() : t;
}

bool is_int(const TypePtr& t) { return t->kind() == TypeKind::IntType || t->kind() == TypeKind::SymIntType; }

// A list of the element type that operators expect from the boxed call.
template <typename Get>
IValue make_list(const TypePtr& element, size_t n, Get get) {
  TypePtr inner = unwrap_optional(element);
  bool optional = inner.get() != element.get();
  switch (inner->kind()) {
    case TypeKind::IntType:
    case TypeKind::SymIntType: {
      c10::List<int64_t> out;
      out.reserve(n);
      for (size_t i = 0; i < n; ++i) out.push_back(get(i).toInt());
      return out;
    }
    case TypeKind::FloatType: {
      c10::List<double> out;
      for (size_t i = 0; i < n; ++i) {
        IValue v = get(i);
        out.push_back(v.isInt() ? (double)v.toInt() : v.toDouble());
      }
      return out;
    }
    case TypeKind::BoolType: {
      c10::List<bool> out;
      for (size_t i = 0; i < n; ++i) out.push_back(get(i).toBool());
      return out;
    }
    case TypeKind::TensorType: {
      if (optional) {
        c10::List<std::optional<at::Tensor>> out;
        out.reserve(n);
        for (size_t i = 0; i < n; ++i) {
          IValue v = get(i);
          out.push_back(v.isNone() ? std::optional<at::Tensor>() : std::optional<at::Tensor>(v.toTensor()));
        }
        return out;
      }
      c10::List<at::Tensor> out;
      out.reserve(n);
      for (size_t i = 0; i < n; ++i) out.push_back(get(i).toTensor());
      return out;
    }
    default: {
      c10::impl::GenericList out(element);
      for (size_t i = 0; i < n; ++i) out.push_back(get(i));
      return out;
    }
  }
}

IValue number(PyObject* o, const TypePtr& type) {
  if (PyBool_Check(o)) return IValue(o == Py_True);
  if (PyLong_Check(o)) return IValue(as_int(o, "an integer argument"));
  if (PyFloat_Check(o)) return IValue(PyFloat_AS_DOUBLE(o));
  if (PyComplex_Check(o)) {
    Py_complex c = PyComplex_AsCComplex(o);
    return IValue(c10::complex<double>(c.real, c.imag));
  }
  raise(PyExc_TypeError, "cannot pass a " + std::string(Py_TYPE(o)->tp_name) + " as " + type->str());
}

IValue convert(PyObject* o, const TypePtr& declared, std::optional<int> repeat) {
  TypePtr type = unwrap_optional(declared);
  if (o == Py_None) {
    if (type.get() == declared.get() && type->kind() != TypeKind::TensorType && type->kind() != TypeKind::NoneType &&
        type->kind() != TypeKind::GeneratorType)
      raise(PyExc_TypeError, "None given where " + declared->str() + " is needed");
    // An argument that is a tensor and not optional takes None as the undefined tensor, as in torch's own argument
    // parser.
    return type.get() == declared.get() && type->kind() == TypeKind::TensorType ? IValue(at::Tensor()) : IValue();
  }
  // dtypes, layouts and memory formats travel as ints in boxed calls.
  if (THPDtype_Check(o)) return IValue(static_cast<int64_t>(reinterpret_cast<THPDtype*>(o)->scalar_type));
  if (THPLayout_Check(o)) return IValue(static_cast<int64_t>(reinterpret_cast<THPLayout*>(o)->layout));
  if (THPMemoryFormat_Check(o))
    return IValue(static_cast<int64_t>(reinterpret_cast<THPMemoryFormat*>(o)->memory_format));
  if (THPDevice_Check(o)) return IValue(reinterpret_cast<THPDevice*>(o)->device);
  if (THPGenerator_Check(o)) return IValue(reinterpret_cast<THPGenerator*>(o)->cdata);
  switch (type->kind()) {
    case TypeKind::TensorType: {
      if (THPVariable_Check(o)) return IValue(THPVariable_Unpack(o));
      IValue n = number(o, type);
      // As torch's own argument parser does: a number given for a tensor takes part in type promotion as a number.
      at::Tensor t = at::scalar_tensor(n.toScalar(), at::TensorOptions(n.isDouble() ? at::kDouble
                                                                       : n.isInt()  ? at::kLong
                                                                       : n.isBool() ? at::kBool
                                                                                    : at::kComplexDouble));
      t.unsafeGetTensorImpl()->set_wrapped_number(true);
      return IValue(std::move(t));
    }
    case TypeKind::FloatType: {
      IValue n = number(o, type);
      return n.isInt() ? IValue((double)n.toInt()) : n.isBool() ? IValue((double)n.toBool()) : n;
    }
    case TypeKind::IntType:
    case TypeKind::SymIntType: {
      IValue n = number(o, type);
      if (n.isBool()) return IValue((int64_t)n.toBool());
      if (!n.isInt()) raise(PyExc_TypeError, std::string("cannot pass a ") + Py_TYPE(o)->tp_name + " as an int");
      return n;
    }
    case TypeKind::BoolType: {
      IValue n = number(o, type);
      return n.isInt() ? IValue(n.toInt() != 0) : n;
    }
    case TypeKind::NumberType:
    case TypeKind::ComplexType: return number(o, type);
    case TypeKind::AnyType:  // the name of a group of processes
    case TypeKind::StringType: return IValue(as_text(o, "a string argument"));
    case TypeKind::DeviceObjType: return IValue(c10::Device(as_text(o, "a device")));
    case TypeKind::ListType: {
      TypePtr element = type->expectRef<c10::ListType>().getElementType();
      if (!PyTuple_Check(o) && !PyList_Check(o)) {  // int[2] takes one int for all
        size_t n = repeat.value_or(1);
        return make_list(element, n, [&](size_t) { return convert(o, element, {}); });
      }
      Items items(o, "a list argument");
      return make_list(element, (size_t)items.size,
                       [&](size_t i) { return convert(items[(Py_ssize_t)i], element, {}); });
    }
    default:
      raise(PyExc_TypeError, std::string("cannot pass a constant ") + Py_TYPE(o)->tp_name + " as " + declared->str());
  }
}

AtenArg parse(PyObject* record, const TypePtr& declared, std::optional<int> repeat, const IndexCheck& slot,
              const IndexCheck& reg, int64_t n_wanted) {
  Items r(record, "an operator's argument");
  std::string kind = as_text(r[0], "an argument's kind");
  AtenArg a;
  a.type = unwrap_optional(declared);
  auto element_type = [&] {
    if (a.type->kind() != TypeKind::ListType)
      raise(PyExc_TypeError, "a list is given where " + declared->str() + " is needed");
    return a.type->expectRef<c10::ListType>().getElementType();
  };
  if (kind == "const") {
    a.kind = AtenArg::kConst;
    a.constant = convert(r[1], declared, repeat);
  } else if (kind == "slot" || kind == "reg" || kind == "wanted") {
    a.kind = kind == "slot" ? AtenArg::kSlot : kind == "reg" ? AtenArg::kReg : AtenArg::kWanted;
    int64_t i = as_int(r[1], "an argument");
    if (a.kind != AtenArg::kWanted) (kind == "slot" ? slot : reg)(i);
    else if (i < 0 || i >= n_wanted)
      raise(PyExc_ValueError, "argument 'wanted' " + std::to_string(i) + " is out of range");
    a.indices.push_back((int32_t)i);
    if (a.type->kind() == TypeKind::ListType) {  // one value for int[n]
      AtenArg list;
      list.kind = AtenArg::kList;
      list.type = element_type();
      a.type = unwrap_optional(list.type);
      list.parts.assign(repeat.value_or(1), a);
      return list;
    }
  } else if (kind == "regs" || kind == "slots") {
    a.kind = kind == "slots" ? AtenArg::kSlots : AtenArg::kRegs;
    a.type = element_type();
    Items items(r[1], "a list argument");
    for (Py_ssize_t i = 0; i < items.size; ++i) {
      if (items[i] == Py_None) {
        a.indices.push_back(-1);
        continue;
      }
      int64_t index = as_int(items[i], "a list argument");
      (kind == "slots" ? slot : reg)(index);
      a.indices.push_back((int32_t)index);
    }
  } else if (kind == "list") {
    a.kind = AtenArg::kList;
    a.type = element_type();
    Items items(r[1], "a list argument");
    for (Py_ssize_t i = 0; i < items.size; ++i) a.parts.push_back(parse(items[i], a.type, {}, slot, reg, n_wanted));
  } else {
    raise(PyExc_ValueError, "unknown kind of operator argument '" + kind + "'");
  }
  return a;
}

IValue reg_value(int64_t v, const TypePtr& type) {
  switch (type->kind()) {
    case TypeKind::FloatType: return IValue((double)v);
    case TypeKind::BoolType: return IValue(v != 0);
    default: return IValue(v);
  }
}

}  // namespace

IValue AtenArg::value(ArgSource& source) const {
  switch (kind) {
    case kConst: return constant;
    case kSlot: return IValue(source.slot(indices[0]));
    case kWanted: return IValue(source.wanted(indices[0]));
    case kReg: return reg_value(source.reg(indices[0]), type);
    case kRegs:
      return make_list(type, indices.size(),
                       [&](size_t i) { return reg_value(source.reg(indices[i]), unwrap_optional(type)); });
    case kSlots:
      return make_list(type, indices.size(),
                       [&](size_t i) { return indices[i] < 0 ? IValue() : IValue(source.slot(indices[i])); });
    case kList: return make_list(type, parts.size(), [&](size_t i) { return parts[i].value(source); });
  }
  return IValue();
}

void AtenArg::read_slots(std::vector<int32_t>& out) const {
  if (kind == kSlot || kind == kSlots)
    for (int32_t i : indices)
      if (i >= 0) out.push_back(i);
  for (const AtenArg& part : parts) part.read_slots(out);
}

AtenArg parse_aten_arg(PyObject* record, const c10::Argument& argument, const IndexCheck& slot, const IndexCheck& reg,
                       int64_t n_wanted) {
  try {
    return parse(record, argument.type(), argument.N(), slot, reg, n_wanted);
  } catch (const PythonError&) {
    // Say which argument it was.
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    Ref t = Ref::steal(type), v = Ref::steal(value), b = Ref::steal(trace);
    PyErr_Format(type, "argument %s: %S", argument.name().c_str(), value);
    throw;
  }
}

}  // namespace jit
