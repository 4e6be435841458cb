// The parts of guards that look into torch: tensor metadata and the global state.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "common.h"

namespace jit {

struct TensorSpec;
struct GlobalState;

// The specs of a program. Equal ones are one: a model has many parameters and few kinds of them, so that these stay in
// the nearest cache.
class TensorSpecs {
 public:
  std::shared_ptr<const TensorSpec> parse(PyObject* spec);

 private:
  static std::string key(const TensorSpec& spec);
  std::unordered_map<std::string, std::shared_ptr<const TensorSpec>> known_;
};

// Whether `object` is a tensor as described; any object may be given. A few nanoseconds, no Python code.
bool tensor_matches(const TensorSpec& spec, PyObject* object);

// A tensor object, the C++ tensor behind it, and what it has to look like.
struct TensorWatch {
  PyObject* tensor;
  void* identity;
  const TensorSpec* spec;
  const void* autograd;  // where its autograd metadata lay: to be fetched early, and not to be read
};

TensorWatch watch_tensor(PyObject* tensor, const TensorSpec* spec);

// Whether each object still holds its C++ tensor and that is still as described.
bool tensors_unchanged(const TensorWatch* watches, size_t n);

bool is_tensor(PyObject* object);

// Sizes and strides of a dense tensor; false for any other object.
bool tensor_layout(PyObject* object, const int64_t** sizes, const int64_t** strides, int64_t* rank);

// The memory from a dense tensor's first element to behind its last one; empty where it has no memory. False for any
// other object.
bool tensor_extent(PyObject* object, uintptr_t* begin, uintptr_t* end);

// Whether the memory that two tensors reach overlaps; true too when that cannot be told.
bool tensors_overlap(PyObject* a, PyObject* b);

// Bytes from the first element of `a` to that of `b`, which are views of one storage; INT64_MIN where they are not.
int64_t tensor_distance(PyObject* a, PyObject* b);

// Whether the storage of a tensor has at least so many bytes before the tensor's first element, and from there on.
bool tensor_has_no_memory(PyObject* object);
bool tensor_has_room(PyObject* object, int64_t before, int64_t after);

// Whether autograd lets a tensor be changed in place where operations are recorded: it is no leaf that requires grad
// and no view of one, and no view that was made under no_grad or by a call with several results. False for other
// objects.
bool tensor_writable(PyObject* object);

// tensor.grad, or None; a new reference.
PyObject* tensor_grad(PyObject* tensor);

std::shared_ptr<const GlobalState> parse_global_state(PyObject* snapshot);
bool global_state_matches(const GlobalState& state);

bool init_guard_tensor(PyObject* module);

}  // namespace jit
