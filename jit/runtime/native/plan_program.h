// A plan in native form.
#pragma once

#include <dlfcn.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <memory>
#include <vector>

#include "aten_args.h"
#include "cuda.h"
#include "products.h"
#include "regs.h"

namespace jit {

using at::Tensor;

struct Desc {
  at::ScalarType dtype = at::kFloat;
  caffe2::TypeMeta meta;
  c10::Device device{c10::kCPU};
  std::vector<int32_t> sizes, strides;
};

struct AtenStep {
  std::optional<c10::OperatorHandle> op;
  std::string name;
  std::vector<AtenArg> args;
  std::vector<int32_t> outs;  // -1: not wanted
  struct Expect {
    bool given = false;
    std::vector<int32_t> sizes, strides;
    std::optional<at::ScalarType> dtype;
  };
  std::vector<Expect> expect;
  bool returns_list = false;
  bool draws = false;  // it moves random generators on
  bool once = false;   // it may do more than its schema says: it is not called again for a run that fails
  bool apart = false;  // it only starts what goes on beside the plan, until a step that waits
  bool waits = false;  // it waits for what is under way, which is its argument and its result
  // Of a vjp step: the slots whose gradient is asked, and per result of the operator the slot of its tangent (-1:
  // none).
  std::vector<int32_t> wanted, tangents;
  // Of a product of matrices: its operands, what is added (-1: nothing) and the result, and how it may be done.
  struct Product {
    int32_t a, b, bias, out;
  } product{};
  std::unique_ptr<Products> products;

  // Whether each call makes it, also where the steps around it are recorded.
  bool is_live() const { return apart || waits; }
  // Whether its results are its first argument: a tensor, or several.
  bool in_place() const {
    const auto& returns = op->schema().returns();
    const auto& arguments = op->schema().arguments();
    return !returns.empty() && !arguments.empty() && returns[0].alias_info() && arguments[0].alias_info() &&
           *returns[0].alias_info() == *arguments[0].alias_info();
  }
};

struct Step {
  enum Op : uint8_t { kAlloc, kArena, kTemp, kCpu, kGpu, kAten, kVjp, kView, kCopy, kFree, kFlag, kCheck } op;
  int32_t dst = -1, src = -1, reg = -1;
  Desc desc;
  void (*function)(void**, const int64_t*) = nullptr;
  std::vector<int32_t> slots, ints;
  std::array<int32_t, 3> grid{};
  std::vector<int32_t> programs;  // of launches that are one: a register for each; slots and ints are those of all
  std::shared_ptr<GpuKernel> kernel;
  std::unique_ptr<AtenStep> aten;
  std::string text;
  std::string shown;  // of a kernel: what profilers call it
};

// A library of CPU kernels that a plan calls, held open for as long as the plan lives.
struct KernelLibrary {
  void *handle, *base;
  KernelLibrary(void* h, void* b) : handle(h), base(b) {}
  KernelLibrary(KernelLibrary&& o) noexcept : handle(o.handle), base(o.base) { o.handle = nullptr; }
  KernelLibrary& operator=(KernelLibrary&&) = delete;
  ~KernelLibrary() {
    if (handle) dlclose(handle);
  }
};

class Graphs;

struct Program {
  std::vector<KernelLibrary> libraries;
  std::string shown, shown_replay;  // what profilers call a run, and the launch of a recording of it
  int32_t n_inputs = 0, n_ints = 0, n_slots = 0;
  std::vector<Reg> regs;
  std::vector<int64_t> reg_values;  // constants filled in
  std::vector<int32_t> computed;    // registers that are evaluated on each run
  std::vector<Step> steps;
  size_t commit = 0;  // steps from here on write what was there before the call, and do not raise
  std::vector<int32_t> outputs, mutates;
  std::vector<int32_t> aligned;    // inputs whose address GPU kernels take for a multiple of 16
  std::vector<int32_t> view_root;  // per slot: the input that the slot is a view of, or -1
  std::vector<int32_t>
      view_owner;  // per slot: the output that it is a view of, or -1; while parsing, the slot whose memory it is
  std::vector<std::pair<int32_t, int32_t>>
      deaths;               // (step, input): no later step or output needs the input; in order of steps
  std::vector<bool> reads;  // per input: whether any step or output needs more than its sizes
  bool has_aten = false, has_gpu = false, has_cuda_alloc = false, has_products = false;
  int32_t cuda_index = -1;  // from the first CUDA device that the steps name
  int64_t const_bytes = 0;
  size_t max_pointers = 0, max_ints = 0;

  std::shared_ptr<Graphs> graphs;  // null: calls are not recorded. Last, so that it goes before the kernels

  // Whether a run changes anything that was there before.
  bool commits() const { return commit < steps.size() || !mutates.empty(); }
};

}  // namespace jit
