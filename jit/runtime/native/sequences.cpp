// Attention of sequences that lie one behind the other, each with itself or with that of the same place: operators that
// a graph calls for tensors of the jagged layout, where PyTorch takes these apart and computes with a tensor for each.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "vjp.h"

namespace jit {
namespace {

using at::Tensor;

std::vector<int64_t> lengths_of(const Tensor& offsets, int64_t total) {
  Tensor ends = offsets.to(at::kCPU, at::kLong).contiguous();
  const int64_t* at = ends.const_data_ptr<int64_t>();
  std::vector<int64_t> lengths;
  int64_t sum = 0;
  for (int64_t i = 1; i < ends.numel(); ++i) {
    lengths.push_back(at[i] - at[i - 1]);
    TORCH_CHECK(lengths.back() >= 0, "jit: offsets that do not ascend");
    sum += lengths.back();
  }
  TORCH_CHECK(sum == total, "jit: offsets that are not those of all rows");
  return lengths;
}

// Of one sequence, as (1, heads, length, width).
Tensor part(const Tensor& t, int64_t start, int64_t length) {
  return t.narrow(0, start, length).transpose(0, 1).unsqueeze(0);
}

// q, k, v: (rows, heads, width) -> (rows, heads, width of v).
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& q_offsets, const Tensor& k_offsets,
                 std::optional<double> scale) {
  std::vector<int64_t> of_q = lengths_of(q_offsets, q.size(0));
  std::vector<int64_t> of_k = k_offsets.is_same(q_offsets) ? of_q : lengths_of(k_offsets, k.size(0));
  TORCH_CHECK(of_q.size() == of_k.size() && k.size(0) == v.size(0), "jit: sequences of other numbers");
  std::vector<Tensor> parts;
  for (int64_t i = 0, a = 0, b = 0; i < static_cast<int64_t>(of_q.size()); a += of_q[i], b += of_k[i], ++i) {
    if (!of_q[i]) continue;
    parts.push_back(at::scaled_dot_product_attention(part(q, a, of_q[i]), part(k, b, of_k[i]), part(v, b, of_k[i]), {},
                                                     0.0, false, scale)
                        .squeeze(0)
                        .transpose(0, 1));
  }
  if (parts.empty()) return at::zeros({0, q.size(1), v.size(2)}, q.options());
  return parts.size() == 1 ? parts[0].contiguous() : at::cat(parts, 0);
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(const Tensor& gradient, const Tensor& q, const Tensor& k,
                                                      const Tensor& v, const Tensor& q_offsets, const Tensor& k_offsets,
                                                      std::optional<double> scale) {
  std::vector<Tensor> given, found(3);
  for (const Tensor& t : {q, k, v}) given.push_back(fresh_leaf(t));
  with_autograd([&] {
    Tensor made = attention(given[0], given[1], given[2], q_offsets, k_offsets, scale);
    if (made.requires_grad())
      found = torch::autograd::grad({made}, given, {gradient.detach()}, std::nullopt, false, /*allow_unused=*/true);
  });
  for (int i = 0; i < 3; ++i)
    found[i] = found[i].defined() ? found[i].contiguous() : at::zeros(given[i].sizes(), given[i].options());
  return {found[0].detach(), found[1].detach(), found[2].detach()};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(jit, m) {
  m.def(
      "attention_of_sequences(Tensor q, Tensor k, Tensor v, Tensor q_offsets, Tensor k_offsets, float? scale) "
      "-> Tensor");
  m.def(
      "attention_of_sequences_backward(Tensor gradient, Tensor q, Tensor k, Tensor v, Tensor q_offsets, "
      "Tensor k_offsets, float? scale) -> (Tensor, Tensor, Tensor)");
  m.impl("attention_of_sequences", c10::DispatchKey::CompositeExplicitAutograd, attention);
  m.impl("attention_of_sequences_backward", c10::DispatchKey::CompositeExplicitAutograd, attention_backward);
}

}  // namespace jit
