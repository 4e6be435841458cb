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

// Whether anybody is to be told. Asked once for a call of a compiled region, and once for a backward.
inline bool is_watched() { return at::hasCallbacks(); }

// Whether this thread is in a region, or a backward, of which somebody is told: what the plans in it ask.
inline thread_local constinit bool in_watched = false;

// While alive, it is.
class Watched {
 public:
  Watched() : before_(in_watched) { in_watched = true; }
  ~Watched() { in_watched = before_; }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  bool before_;
};

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
