#include "recorded.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "common.h"
#include "plan_memory.h"
#include "vjp.h"

namespace jit {
namespace {

constexpr const char* kPrefix = "jit::recorded_";

// What one call has left for its backward.
struct Record {
  std::vector<at::Tensor> results;  // with their history, which ends at the leaves
  std::vector<at::Tensor> leaves;
  at::Tensor memory;
  std::mutex running;  // a backward puts the gradients at the leaves for a moment
};

void drop(void* record) { delete static_cast<Record*>(record); }

// A tensor of one byte whose memory owns the record.
at::Tensor tensor_of(std::unique_ptr<Record> record, at::Device device) {
  record->memory = at::empty({1}, at::TensorOptions(at::kByte).device(device));
  const at::Tensor memory = record->memory;
  void* data = memory.data_ptr();
  c10::Storage storage(c10::Storage::use_byte_size_t(), 1, c10::DataPtr(data, record.release(), &drop, device), nullptr,
                       false);
  at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), memory.key_set(), memory.dtype());
  t.unsafeGetTensorImpl()->set_sizes_contiguous({1});
  return t;
}

Record& record_of(const at::Tensor& t) {
  const c10::DataPtr& data = t.storage().data_ptr();
  TORCH_CHECK(data.get_deleter() == &drop, "jit: what a library call has recorded for its backward was replaced by a ",
              "copy, as hooks on saved tensors do");
  return *static_cast<Record*>(data.get_context());
}

// `t` as a leaf. Where its memory may be written meanwhile it is a copy; else it counts changes with `t`, so that the
// backward finds out.
at::Tensor leaf_of(const at::Tensor& t, bool copied, bool wanted) {
  at::Tensor leaf;
  if (copied || t.is_inference()) leaf = t.clone();
  else
    leaf = at::Tensor(t.unsafeGetTensorImpl()->shallow_copy_and_detach(t.unsafeGetTensorImpl()->version_counter(),
                                                                       /*allow_tensor_metadata_change=*/false));
  if (wanted) leaf.set_requires_grad(true);
  return leaf;
}

void recorded(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  auto inner = c10::Dispatcher::singleton().findSchemaOrThrow(
      ("aten::" + schema.name().substr(std::string(kPrefix).size())).c_str(), schema.overload_name().c_str());
  auto copied = torch::jit::pop(*stack).toBoolList();
  auto wanted = torch::jit::pop(*stack).toBoolList();
  auto arguments = torch::jit::pop(*stack, schema.arguments().size() - 2);
  auto record = std::make_unique<Record>();
  std::optional<at::Device> device;
  size_t position = 0;
  auto leaf = [&](const at::Tensor& t) {
    TORCH_CHECK(position < wanted.size() && position < copied.size(), "jit: ", schema.name(), " was given ",
                wanted.size(), " flags for more tensors");
    bool needed = wanted.get(position), copy = copied.get(position);
    ++position;
    at::Tensor made = leaf_of(t, copy, needed);
    if (!device) device = t.device();
    if (needed) record->leaves.push_back(made);
    return made;
  };
  torch::jit::Stack given;
  {
    c10::AutoGradMode off(false);
    for (c10::IValue& v : arguments) {
      if (v.isTensor() && v.toTensor().defined()) {
        given.push_back(leaf(v.toTensor()));
      } else if (v.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& t : v.toTensorVector()) list.push_back(leaf(t));
        given.push_back(std::move(list));
      } else {
        given.push_back(std::move(v));
      }
    }
  }
  with_autograd([&] { inner.callBoxed(given); });
  c10::AutoGradMode off(false);
  for (c10::IValue& v : given) {
    at::Tensor t = std::move(v).toTensor();
    // A copy: what is written into a result is not written into what the backward reads.
    stack->push_back(t.requires_grad() ? t.detach().clone() : t);
    record->results.push_back(std::move(t));
  }
  stack->push_back(tensor_of(std::move(record), device.value_or(at::kCPU)));
}

// The gradients of the leaves. On a processor a call has recorded hundreds of small steps, and a backward that fills
// the leaves' own gradients is quicker than one that is asked for some tensors: that first looks for them below each
// step.
std::vector<at::Tensor> gradients_of(Record& record, const std::vector<at::Tensor>& outputs,
                                     const std::vector<at::Tensor>& given) {
  if (!record.memory.is_cpu())
    return torch::autograd::grad(outputs, record.leaves, given, /*retain_graph=*/true, /*create_graph=*/false,
                                 /*allow_unused=*/true);
  std::vector<at::Tensor> gradients;
  std::lock_guard<std::mutex> lock(record.running);
  auto taken = [&] {
    gradients.clear();
    for (at::Tensor& leaf : record.leaves) gradients.push_back(std::exchange(leaf.mutable_grad(), at::Tensor()));
  };
  try {
    torch::autograd::backward(outputs, given, /*retain_graph=*/true, /*create_graph=*/false);
  } catch (...) {
    taken();
    throw;
  }
  taken();
  return gradients;
}

std::vector<at::Tensor> recorded_gradient(const at::Tensor& tensor,
                                          const c10::List<std::optional<at::Tensor>>& tangents) {
  Record& record = record_of(tensor);
  std::vector<at::Tensor> outputs, given, gradients(record.leaves.size());
  for (size_t i = 0; i < tangents.size() && i < record.results.size(); ++i) {
    std::optional<at::Tensor> tangent = tangents.get(i);
    if (!tangent || !tangent->defined() || !record.results[i].requires_grad()) continue;
    outputs.push_back(record.results[i]);
    given.push_back(tangent->detach());
  }
  if (!outputs.empty() && !record.leaves.empty())
    with_autograd([&] { gradients = gradients_of(record, outputs, given); });
  c10::AutoGradMode off(false);
  for (size_t i = 0; i < gradients.size(); ++i)
    if (!gradients[i].defined()) gradients[i] = at::zeros_like(record.leaves[i]);
  return gradients;
}

torch::Library& library() {
  static torch::Library& made = *[] {
    auto* m = new torch::Library(torch::Library::FRAGMENT, "jit", std::nullopt, __FILE__, __LINE__);
    m->def("jit::recorded_gradient(Tensor record, Tensor?[] tangents) -> Tensor[]");
    m->impl("recorded_gradient", torch::CppFunction(&recorded_gradient));
    return m;
  }();
  return made;
}

}  // namespace

bool define_recorded(const std::string& name, const std::string& overload) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  torch::Library& m = library();
  if (name.rfind(kPrefix, 0) != 0) return false;
  auto& dispatcher = c10::Dispatcher::singleton();
  if (dispatcher.findSchema({name, overload})) return true;
  auto inner = dispatcher.findSchema({"aten::" + name.substr(std::string(kPrefix).size()), overload});
  if (!inner) return false;
  const auto& schema = inner->schema();
  std::vector<c10::Argument> arguments = schema.arguments(), returns = schema.returns();
  for (const c10::Argument& r : returns)
    if (!r.type()->isSubtypeOf(*c10::TensorType::get())) return false;
  for (const char* flags : {"wanted", "copied"})
    arguments.emplace_back(flags, c10::ListType::ofBools(), std::nullopt, std::nullopt,
                           /*kwarg_only=*/!arguments.empty() && arguments.back().kwarg_only());
  returns.emplace_back("", c10::TensorType::get());
  m.def(c10::FunctionSchema(name, overload, std::move(arguments), std::move(returns)));
  m.impl((overload.empty() ? name : name + "." + overload).c_str(),
         torch::CppFunction::makeFromBoxedFunction<&recorded>());
  return true;
}

}  // namespace jit
