// Integer registers: the little straight-line programs that compute sizes, strides and offsets from tensors and ints.
#pragma once

#include <vector>

#include "common.h"

namespace jit {

struct Reg {
  enum Op : uint8_t { kConst, kSize, kStride, kInt, kAdd, kSub, kMul, kFloorDiv, kMod, kMax, kMin } op;
  int32_t a = 0, b = 0;  // register operands; or (input, dim); or (int index, -)
  int64_t value = 0;     // of a constant
};

inline int64_t floor_div(int64_t a, int64_t b) {
  int64_t q = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;
}

inline int64_t combine(Reg::Op op, int64_t a, int64_t b) {
  switch (op) {
    case Reg::kAdd: return a + b;
    case Reg::kSub: return a - b;
    case Reg::kMul: return a * b;
    case Reg::kFloorDiv: return b == 0 ? 0 : floor_div(a, b);
    case Reg::kMod: return b == 0 ? 0 : a - b * floor_div(a, b);
    case Reg::kMax: return a > b ? a : b;
    case Reg::kMin: return a < b ? a : b;
    default: return 0;
  }
}

// Parses `regs` as the plan's documentation describes them; constants are folded.
inline std::vector<Reg> parse_regs(PyObject* object, int n_inputs, int n_ints) {
  static const std::pair<const char*, Reg::Op> binary[] = {
      {"add", Reg::kAdd}, {"sub", Reg::kSub}, {"mul", Reg::kMul}, {"floordiv", Reg::kFloorDiv},
      {"mod", Reg::kMod}, {"max", Reg::kMax}, {"min", Reg::kMin}};
  std::vector<Reg> regs;
  Items items(object, "regs");
  for (Py_ssize_t i = 0; i < items.size; ++i) {
    Items r(items[i], "a register");
    std::string op = as_text(r[0], "a register's kind");
    Reg reg{};
    if (op == "const") {
      reg.op = Reg::kConst;
      reg.value = as_int(r[1], "a constant register");
    } else if (op == "size" || op == "stride") {
      reg.op = op == "size" ? Reg::kSize : Reg::kStride;
      reg.a = (int32_t)as_int(r[1], "a size register's input");
      reg.b = (int32_t)as_int(r[2], "a size register's dim");
      if (reg.a < 0 || reg.a >= n_inputs || reg.b < 0)
        raise(PyExc_ValueError, "register " + std::to_string(i) + " reads a size of input " + std::to_string(reg.a) +
                                    ", which does not exist");
    } else if (op == "int") {
      reg.op = Reg::kInt;
      reg.a = (int32_t)as_int(r[1], "an int register");
      if (reg.a < 0 || reg.a >= n_ints)
        raise(PyExc_ValueError,
              "register " + std::to_string(i) + " reads int " + std::to_string(reg.a) + ", which does not exist");
    } else {
      bool found = false;
      for (auto& [name, code] : binary) {
        if (op != name) continue;
        found = true;
        reg.op = code;
        reg.a = (int32_t)as_int(r[1], "a register operand");
        reg.b = (int32_t)as_int(r[2], "a register operand");
        if (reg.a < 0 || reg.a >= i || reg.b < 0 || reg.b >= i)
          raise(PyExc_ValueError, "register " + std::to_string(i) + " reads a register that is not computed before it");
        if (regs[reg.a].op == Reg::kConst && regs[reg.b].op == Reg::kConst) {
          reg.value = combine(code, regs[reg.a].value, regs[reg.b].value);
          reg.op = Reg::kConst;
        }
      }
      if (!found) raise(PyExc_ValueError, "unknown register kind '" + op + "'");
    }
    regs.push_back(reg);
  }
  return regs;
}

}  // namespace jit
