// How to differentiate a plan: a GradSpec in native form, with every index checked.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "plan_program.h"

namespace jit {

struct GradProgram {
  enum Kind : uint8_t { kInput, kOutput, kExtra };
  struct Saved {
    Kind kind;
    int32_t index;
  };
  // A size or stride of an input; input -1: the forward's int `dim`.
  struct Int {
    int32_t input, dim;
    bool stride = false;
  };
  // What eager's nodes keep and free together: they lie on the way from any of the tangents to any of the inputs of
  // `wrt`.
  struct Kept {
    std::vector<bool> tangents, wrt;
  };
  // several: autograd is told that the operator gave more views than this one.
  struct View {
    int32_t output;
    Kind kind;
    int32_t base;
    std::vector<int32_t> sizes, strides;
    int32_t offset;
    bool several = false;
  };

  std::shared_ptr<const Program> forward, backward;
  int32_t n_outputs = 0;
  std::vector<int32_t> wrt, tangents, grads;  // grads: per wrt, the backward's output or -1
  std::vector<Saved> saved;
  std::vector<Int> ints;
  std::vector<View> views;
  std::vector<std::vector<int32_t>> depends;  // per wrt, the tangents that its gradient depends on; empty: all on all
  std::vector<Kept> keeps;
  // What eager keeps besides and the backward does not read: `writes` by the caller are still to come.
  struct Watched {
    Kind kind;
    int32_t index, writes;
    Kept way;
  };
  std::vector<Watched> watched;
  bool open = false;                    // a tangent leads to nothing that is kept: it may be walked again and again
  std::vector<std::vector<bool>> uses;  // per saved value, the tangents whose gradients read it; empty: all
  std::vector<bool> in_part;            // per saved value, whether only some tangents' gradients read it
  // Where the forward's inputs are found again: per input, a position in `saved`, or -1 - a position among those that
  // are kept besides.
  std::vector<int32_t> found, kept;
  std::vector<int32_t> wrt_of;  // per input, its position in `wrt` or -1
  std::string name;
  PyObject* second = nullptr;  // owned; null when the gradients cannot be differentiated again
  PyObject* narrow = nullptr;  // owned; null when there is one backward for all tangents

  GradProgram() = default;
  GradProgram(const GradProgram&) = delete;
  ~GradProgram();

  // The backward for the case that only the tangents marked in `present` are given: null when it is the one for all of
  // them, with zeros. Asks Python, on any thread, when it sees a case for the first time; what Python raises comes out
  // as torch's python_error.
  std::shared_ptr<const Program> narrowed(const std::vector<bool>& present) const;

  // Those that were asked for so far and are not the one for all.
  std::vector<std::shared_ptr<const Program>> all_narrowed() const {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::shared_ptr<const Program>> found;
    for (auto& [present, program] : narrowed_)
      if (program) found.push_back(program);
    return found;
  }

  // The forward's slot of an output, or of an extra result.
  int32_t slot(Kind kind, int32_t index) const { return forward->outputs[kind == kExtra ? n_outputs + index : index]; }

 private:
  mutable std::mutex mutex_;
  mutable std::map<std::vector<bool>, std::shared_ptr<const Program>> narrowed_;
};

// Raises ValueError or TypeError with what is wrong with the data.
std::shared_ptr<const GradProgram> parse_gradient(std::shared_ptr<const Program> forward,
                                                  std::shared_ptr<const Program> backward, PyObject* spec);

}  // namespace jit
