// The integers that a plan takes, computed from Python floats, integers and tensors of one element: see
// runtime/numbers.py for the data.
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cmath>
#include <vector>

#include "common.h"
#include "numbers.h"

namespace jit {
namespace {

constexpr double kFloatMax = 3.4028234663852886e38;
constexpr double kExact = 9007199254740992.0;  // 2**53: a double holds every integer up to it

struct Row {
  enum Op : uint8_t {
    kConst,
    kNumber,
    kItem,
    kAdd,
    kSub,
    kMul,
    kDiv,
    kPow,
    kNeg,
    kSqrt,
    kAdd32,
    kSub32,
    kMul32,
    kRound32,
    kLess,
    kLessEqual,
    kEqual,
    kNot,
    kCall
  } op;
  int32_t a = 0, b = 0;
  double value = 0;
  Ref fn;
  std::vector<int32_t> args;
};

struct Result {
  enum Kind : uint8_t { kInt, kLow, kHigh } kind;
  int32_t index;
};

struct Numbers {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  int32_t n_arguments;
  std::vector<Row> rows;
  std::vector<Result> results;
  PyObject* data;  // the arguments of load_numbers
};

// Raising a few bases to one power is what optimizers do for each of their parameters.
struct Powers {
  double base[4], exponent[4], power[4];
  int known = 0, next = 0;

  bool find(double a, double b, double& out) const {
    for (int i = 0; i < known; ++i)
      if (base[i] == a && exponent[i] == b) {
        out = power[i];
        return true;
      }
    return false;
  }
  void add(double a, double b, double r) {
    base[next] = a, exponent[next] = b, power[next] = r;
    next = (next + 1) & 3;
    if (known < 4) ++known;
  }
};

bool from_object(PyObject* o, double& out) {
  if (!o) {
    PyErr_Clear();
    return false;
  }
  bool fits = PyFloat_CheckExact(o);
  if (fits) out = PyFloat_AS_DOUBLE(o);
  return fits;
}

bool power(double a, double b, Powers& powers, double& out) {
  if (a > 0 && std::isfinite(a) && std::isfinite(b)) {
    if (powers.find(a, b, out)) return true;
    out = std::pow(a, b);
    if (std::isfinite(out)) {
      powers.add(a, b, out);
      return true;
    }
  }
  // All else, errors too, by Python's own rules.
  Ref x = Ref::steal(PyFloat_FromDouble(a)), y = Ref::steal(PyFloat_FromDouble(b));
  Ref r = x && y ? Ref::steal(PyNumber_Power(x.get(), y.get(), Py_None)) : Ref();
  return from_object(r.get(), out);
}

bool number(PyObject* o, double& out) {
  if (PyFloat_CheckExact(o)) {
    out = PyFloat_AS_DOUBLE(o);
    return true;
  }
  if (!PyLong_Check(o)) return false;
  out = PyLong_AsDouble(o);
  if (out == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    return false;
  }
  return std::fabs(out) <= kExact;
}

bool item(PyObject* o, double& out) {
  if (!THPVariable_Check(o)) return false;
  const at::Tensor& t = THPVariable_Unpack(o);
  if (!t.defined() || !t.device().is_cpu() || t.layout() != at::kStrided || t.numel() != 1 || t.is_neg() ||
      !t.has_storage())
    return false;
  const void* data = t.const_data_ptr();
  if (!data) return false;
  switch (t.scalar_type()) {
    case at::kFloat: out = *static_cast<const float*>(data); return true;
    case at::kDouble: out = *static_cast<const double*>(data); return true;
    case at::kHalf: out = (float)*static_cast<const at::Half*>(data); return true;
    case at::kBFloat16: out = (float)*static_cast<const at::BFloat16*>(data); return true;
    default: return false;
  }
}

bool call(const Row& row, const double* values, double& out) {
  std::vector<Ref> held;
  std::vector<PyObject*> args;
  for (int32_t r : row.args) {
    held.push_back(Ref::steal(PyFloat_FromDouble(values[r])));
    if (!held.back()) return from_object(nullptr, out);
    args.push_back(held.back().get());
  }
  Ref r = Ref::steal(PyObject_Vectorcall(row.fn.get(), args.data(), args.size(), nullptr));
  return from_object(r.get(), out);
}

bool arithmetic(Row::Op op, double a, double b, Powers& powers, double& out) {
  switch (op) {
    case Row::kAdd: out = a + b; return true;
    case Row::kSub: out = a - b; return true;
    case Row::kMul: out = a * b; return true;
    case Row::kDiv: out = a / b; return b != 0;
    case Row::kPow: return power(a, b, powers, out);
    case Row::kNeg: out = -a; return true;
    case Row::kSqrt: out = std::sqrt(a); return !(a < 0);
    case Row::kAdd32: out = (float)a + (float)b; return true;
    case Row::kSub32: out = (float)a - (float)b; return true;
    case Row::kMul32: out = (float)a * (float)b; return true;
    case Row::kLess: out = a < b; return true;
    case Row::kLessEqual: out = a <= b; return true;
    case Row::kEqual: out = a == b; return true;
    case Row::kNot: out = a == 0; return true;
    default: out = (float)a; return true;  // kRound32
  }
}

// False where Python would raise, or would not get a float.
bool evaluate(const Numbers& self, PyObject* const* arguments, double* values) {
  Powers powers;
  for (size_t i = 0; i < self.rows.size(); ++i) {
    const Row& row = self.rows[i];
    double& out = values[i];
    bool fine = true;
    switch (row.op) {
      case Row::kConst: out = row.value; continue;
      case Row::kNumber: fine = number(arguments[row.a], out); break;
      case Row::kItem: fine = item(arguments[row.a], out); break;
      case Row::kCall: fine = call(row, values, out); break;
      default: fine = arithmetic(row.op, values[row.a], values[row.b], powers, out);
    }
    if (!fine) return false;
  }
  return true;
}

PyObject* numbers_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* names) {
  auto& self = *reinterpret_cast<Numbers*>(object);
  if (PyVectorcall_NARGS(nargsf) != self.n_arguments || (names && PyTuple_GET_SIZE(names)))
    return PyErr_Format(PyExc_TypeError, "this program takes %d arguments by position", self.n_arguments);
  constexpr size_t kInline = 256;
  double inline_values[kInline];
  std::vector<double> heap;
  double* values = inline_values;
  if (self.rows.size() > kInline) {
    heap.resize(self.rows.size());
    values = heap.data();
  }
  if (!evaluate(self, args, values)) Py_RETURN_NONE;
  Ref out = Ref::steal(PyBytes_FromStringAndSize(nullptr, (Py_ssize_t)(self.results.size() * sizeof(int64_t))));
  if (!out) return nullptr;
  char* to = PyBytes_AS_STRING(out.get());
  for (const Result& r : self.results) {
    int64_t word;
    if (r.kind == Result::kInt) {
      PyObject* o = args[r.index];
      int overflow = 0;
      word = PyLong_Check(o) ? PyLong_AsLongLongAndOverflow(o, &overflow) : (overflow = 1);
      if (overflow) Py_RETURN_NONE;
    } else {
      double v = values[r.index];
      if (std::isfinite(v) && std::fabs(v) > kFloatMax) Py_RETURN_NONE;
      int32_t halves[2];
      static_assert(sizeof halves == sizeof v);
      std::memcpy(halves, &v, sizeof v);
      word = halves[r.kind == Result::kHigh];
    }
    std::memcpy(to, &word, sizeof word);
    to += sizeof word;
  }
  return out.release();
}

// ---- the Python type ------------------------------------------------------------------------------------------------

PyTypeObject NumbersType = {PyVarObject_HEAD_INIT(nullptr, 0)};

Row parse_row(PyObject* o, int32_t at, int32_t n_arguments) {
  static const std::pair<const char*, Row::Op> binary[] = {
      {"+", Row::kAdd},  {"-", Row::kSub},        {"*", Row::kMul},       {"/", Row::kDiv},
      {"**", Row::kPow}, {"add32", Row::kAdd32},  {"sub32", Row::kSub32}, {"mul32", Row::kMul32},
      {"<", Row::kLess}, {"<=", Row::kLessEqual}, {"==", Row::kEqual}};
  static const std::pair<const char*, Row::Op> unary[] = {
      {"neg", Row::kNeg}, {"sqrt", Row::kSqrt}, {"round32", Row::kRound32}, {"not", Row::kNot}};
  Items items(o, "a row of numbers");
  std::string name = as_text(items[0], "a row's kind");
  Row row{};
  auto index = [&](PyObject* v, int32_t limit) {
    int64_t i = as_int(v, "a row's operand");
    if (i < 0 || i >= limit)
      raise(PyExc_ValueError, "row " + std::to_string(at) + " reads what does not exist before it");
    return (int32_t)i;
  };
  if (name == "const") {
    row.op = Row::kConst;
    if (!PyFloat_Check(items[1])) raise(PyExc_TypeError, "a constant number has to be a float");
    row.value = PyFloat_AS_DOUBLE(items[1]);
    return row;
  }
  if (name == "number" || name == "item") {
    row.op = name == "number" ? Row::kNumber : Row::kItem;
    row.a = index(items[1], n_arguments);
    return row;
  }
  if (name == "call") {
    row.op = Row::kCall;
    row.fn = Ref::share(items[1]);
    Items args(items[2], "a call's operands");
    for (Py_ssize_t i = 0; i < args.size; ++i) row.args.push_back(index(args[i], at));
    return row;
  }
  for (auto& [kind, op] : binary)
    if (name == kind) {
      row.op = op;
      row.a = index(items[1], at);
      row.b = index(items[2], at);
      return row;
    }
  for (auto& [kind, op] : unary)
    if (name == kind) {
      row.op = op;
      row.a = index(items[1], at);
      return row;
    }
  raise(PyExc_ValueError, "unknown row of numbers '" + name + "'");
}

PyObject* py_load_numbers(PyObject*, PyObject* args) {
  int n_arguments;
  PyObject *rows, *results;
  if (!PyArg_ParseTuple(args, "iOO:load_numbers", &n_arguments, &rows, &results)) return nullptr;
  try {
    Items row_items(rows, "rows"), result_items(results, "results");
    std::vector<Row> parsed;
    for (Py_ssize_t i = 0; i < row_items.size; ++i) parsed.push_back(parse_row(row_items[i], (int32_t)i, n_arguments));
    std::vector<Result> wanted;
    for (Py_ssize_t i = 0; i < result_items.size; ++i) {
      Items r(result_items[i], "a result");
      std::string kind = as_text(r[0], "a result's kind");
      int64_t index = as_int(r[1], "a result");
      if (kind != "int" && kind != "low" && kind != "high") raise(PyExc_ValueError, "unknown result '" + kind + "'");
      if (index < 0 || index >= (kind == "int" ? n_arguments : (int64_t)parsed.size()))
        raise(PyExc_ValueError, "result " + std::to_string(i) + " does not exist");
      wanted.push_back({kind == "int" ? Result::kInt : kind == "low" ? Result::kLow : Result::kHigh, (int32_t)index});
    }
    auto* self = PyObject_New(Numbers, &NumbersType);
    if (!self) return nullptr;
    self->vectorcall = Entry<numbers_call>::call;
    self->data = Py_NewRef(args);
    self->n_arguments = n_arguments;
    new (&self->rows) std::vector<Row>(std::move(parsed));
    new (&self->results) std::vector<Result>(std::move(wanted));
    return reinterpret_cast<PyObject*>(self);
  } catch (const PythonError&) {
    return nullptr;
  }
}

void numbers_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Numbers*>(object);
  self->rows.~vector();
  self->results.~vector();
  Py_DECREF(self->data);
  PyObject_Free(object);
}

PyObject* numbers_get_data(PyObject* object, void*) { return Py_NewRef(reinterpret_cast<Numbers*>(object)->data); }

PyGetSetDef numbers_getset[] = {
    {"data", numbers_get_data, nullptr, "The arguments of load_numbers that it was made of.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMethodDef methods[] = {
    {"load_numbers", Entry<py_load_numbers>::call, METH_VARARGS,
     "load_numbers(n_arguments, rows, results) -> callable: the results as the bytes of int64 values, or None."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool numbers_check(PyObject* object) { return Py_IS_TYPE(object, &NumbersType); }

bool numbers_hold(PyObject* object, PyObject* const* arguments) {
  auto& self = *reinterpret_cast<Numbers*>(object);
  std::vector<double> values(self.rows.size());
  bool fine = evaluate(self, arguments, values.data());
  if (!fine) PyErr_Clear();
  for (const Result& r : self.results) fine = fine && r.kind != Result::kInt && values[r.index] != 0;
  return fine;
}

int32_t numbers_arguments(PyObject* object) { return reinterpret_cast<Numbers*>(object)->n_arguments; }

bool init_numbers(PyObject* module) {
  NumbersType.tp_name = "jit.runtime.native.Numbers";
  NumbersType.tp_doc = "A loaded program of numbers: see jit/runtime/numbers.py.";
  NumbersType.tp_basicsize = sizeof(Numbers);
  NumbersType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  NumbersType.tp_vectorcall_offset = offsetof(Numbers, vectorcall);
  NumbersType.tp_call = PyVectorcall_Call;
  NumbersType.tp_dealloc = numbers_dealloc;
  NumbersType.tp_getset = numbers_getset;
  return PyType_Ready(&NumbersType) == 0 && PyModule_AddObjectRef(module, "Numbers", (PyObject*)&NumbersType) == 0 &&
         PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace jit
