#include "vjp.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>

#include "plan_memory.h"

namespace jit {
namespace {

// Autograd switched on inside code that runs below it; autocast stays off.
struct WithAutograd {
  std::optional<c10::InferenceMode> normal;
  c10::AutoGradMode grad;
  c10::impl::ForceDispatchKeyGuard keys;
  static c10::impl::LocalDispatchKeySet opened() {
    auto set = c10::impl::tls_local_dispatch_key_set();
    set.included_ = set.included_ | c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView);
    set.excluded_ = set.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
    return set;
  }
  static std::optional<c10::InferenceMode> left() {
    if (!c10::InferenceMode::is_enabled()) return std::nullopt;
    return std::optional<c10::InferenceMode>(std::in_place, false);
  }
  WithAutograd() : normal(left()), grad(true), keys(opened()) {}
};

}  // namespace

void with_autograd(const std::function<void()>& fn) {
  WithAutograd on;
  fn();
}

at::Tensor fresh_leaf(const at::Tensor& t) {
  at::Tensor leaf = alias_of(t);
  leaf.set_requires_grad(true);
  return leaf;
}

std::vector<at::Tensor> operator_gradients(const c10::OperatorHandle& op, std::vector<c10::IValue>&& stack,
                                           const std::vector<at::Tensor>& leaves,
                                           const std::vector<at::Tensor>& tangents) {
  WithAutograd on;
  op.callBoxed(stack);
  std::vector<at::Tensor> results, outputs, given;
  for (c10::IValue& v : stack) {
    if (v.isTensorList())
      for (const at::Tensor& t : v.toTensorVector()) results.push_back(t);
    else results.push_back(v.isTensor() ? std::move(v).toTensor() : at::Tensor());
  }
  stack.clear();
  TORCH_CHECK(tangents.size() <= results.size(), "jit: ", op.schema().name(), " returned ", results.size(),
              " tensors, its gradient is asked for ", tangents.size());
  for (size_t i = 0; i < tangents.size(); ++i) {
    if (!tangents[i].defined() || !results[i].defined() || !results[i].requires_grad()) continue;
    outputs.push_back(std::move(results[i]));
    given.push_back(tangents[i]);
  }
  results.clear();
  std::vector<at::Tensor> gradients(leaves.size());
  if (!outputs.empty())
    gradients = torch::autograd::grad(outputs, leaves, given, /*retain_graph=*/false, /*create_graph=*/false,
                                      /*allow_unused=*/true);
  c10::AutoGradMode off(false);
  for (size_t i = 0; i < leaves.size(); ++i)
    if (!gradients[i].defined()) gradients[i] = at::zeros_like(leaves[i]);
  return gradients;
}

}  // namespace jit
