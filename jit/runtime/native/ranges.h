// Ranges for PyTorch's profilers and for whatever else asks to be told of its operations (torch.profiler, emit_nvtx,
// execution traces): around a compiled region, a run of a plan, a kernel.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace jit {

// Whether anybody is to be told. Asked once for a region and once for a run of a plan.
inline bool is_watched() { return at::hasCallbacks(); }

// A range from `begin` on, to the end of the object's life, also where that is ended by an exception.
class Range {
 public:
  // One that spans several operations: profilers show it above the kernels that a GPU runs for it, too. `name` lives
  // as long as the range. `sequence`: the number of the node of autograd's graph that it makes, or -1.
  void begin(std::string_view name, int64_t sequence = -1) {
    range_.emplace(at::RecordScope::USER_SCOPE);
    range_->before(name, sequence);
  }

  // One operation. `inputs()` gives the tensors that it is given, and is asked where shapes are recorded.
  template <typename Inputs>
  void begin_operation(std::string_view name, Inputs&& inputs) {
    range_.emplace(at::RecordScope::FUNCTION);
    if (!range_->isActive()) return;
    if (!range_->needsInputs()) return range_->before(name);
    inputs_ = inputs();
    range_->before(name, c10::ArrayRef<const c10::IValue>(inputs_.data(), inputs_.size()));
  }

 private:
  std::vector<c10::IValue> inputs_;  // outlives the range, which refers to it
  std::optional<at::RecordFunction> range_;
};

}  // namespace jit
