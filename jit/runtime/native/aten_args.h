// Arguments of boxed operator calls: constants are converted once, slots and registers on each call.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <vector>

#include "common.h"

namespace jit {

// Where a run keeps its values.
struct ArgSource {
  virtual const at::Tensor& slot(int32_t i) = 0;
  virtual int64_t reg(int32_t i) = 0;
  virtual const at::Tensor& wanted(int32_t k) = 0;

 protected:
  ~ArgSource() = default;
};

struct AtenArg {
  enum Kind : uint8_t { kConst, kSlot, kWanted, kReg, kRegs, kSlots, kList } kind = kConst;
  c10::TypePtr type;  // of the value, or of a list's elements
  c10::IValue constant;
  std::vector<int32_t> indices;  // slots (-1: None) or registers
  std::vector<AtenArg> parts;    // of a list

  c10::IValue value(ArgSource& source) const;

  // Appends the slots that the argument reads.
  void read_slots(std::vector<int32_t>& out) const;
};

using IndexCheck = std::function<void(int64_t)>;

// Parses ("slot", i), ("wanted", k), ("reg", r), ("regs", (..)), ("slots", (i|None..)), ("const", object) or ("list",
// (args..)) for a schema's argument.
AtenArg parse_aten_arg(PyObject* record, const c10::Argument& argument, const IndexCheck& slot, const IndexCheck& reg,
                       int64_t n_wanted = 0);

}  // namespace jit
