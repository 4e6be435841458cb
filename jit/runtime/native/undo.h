// What a run that fails leaves behind: nothing, but for what cannot be undone, which is told to whoever runs the call
// again.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <array>
#include <atomic>
#include <vector>

#include "common.h"

namespace jit {

// The states of random generators as they were before a run has drawn from them.
class GeneratorStates {
 public:
  GeneratorStates() = default;
  GeneratorStates(const GeneratorStates&) = delete;
  ~GeneratorStates();

  // Notes the default generators of the CPU and of CUDA device `device` (-1: none), and those among the arguments of an
  // operator.
  void note(int device, const torch::jit::Stack& arguments);
  void restore() noexcept;

 private:
  struct State;
  void add(const at::Generator& generator);
  State* first_ = nullptr;
};

// A call of an operator that cannot be undone: it is not made again when the program's call is.
struct Happened {
  c10::OperatorHandle op;
  std::vector<at::Tensor> results;
  bool raised;  // with the error that made the run fail
};

// Notes of the run that is failing on this thread: `final` when it has begun to write what was there before.
void note_failure(bool final, std::vector<Happened>&& happened) noexcept;

// Says that the Python error which is about to end a run comes from a signal, and not from the run.
void note_signal() noexcept;

// Notes that the Python error that is set is how a run has failed, and what there is to be told of that run. An error
// of a signal's is not.
void tie_failure();

// Injected failures, for tests: points where a run may fail are counted down.
struct Faults {
  std::atomic<int64_t> left{-1};  // points until one fails; -1: none does
  std::atomic<bool> interrupts{false};

  void reach(const char* what) {
    if (__builtin_expect(left.load(std::memory_order_relaxed) >= 0, 0)) hit(what);
  }
  void hit(const char* what);
};

extern Faults faults;

}  // namespace jit
