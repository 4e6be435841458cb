// The gradient of one operator call, by replaying it under PyTorch's own autograd.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <vector>

namespace jit {

// Calls `fn` with autograd on, inside code that runs below it. The GIL must not be held.
void with_autograd(const std::function<void()>& fn);

// A tensor on the same memory that requires grad and has no history.
at::Tensor fresh_leaf(const at::Tensor& t);

// Calls `op` on `stack` with autograd on and gives the gradient of each leaf. Tensors of the results are counted
// through lists; `tangents` has one entry per such tensor, undefined where there is none. A leaf that the results do
// not depend on gets zeros. The GIL must not be held.
std::vector<at::Tensor> operator_gradients(const c10::OperatorHandle& op, std::vector<c10::IValue>&& stack,
                                           const std::vector<at::Tensor>& leaves,
                                           const std::vector<at::Tensor>& tangents);

}  // namespace jit
