// Recordings in pieces: a collective, and the wait for one, is made by each call between the graphs of a recording.
#include <algorithm>

#include "recording.h"

namespace jit {

size_t launches_of(const Program& p, size_t from, size_t to) {
  return std::count_if(p.steps.begin() + from, p.steps.begin() + to, [](const Step& s) {
    return s.op == Step::kGpu || s.op == Step::kCopy || (s.op == Step::kAten && !s.aten->is_live());
  });
}

static bool has(const std::vector<int32_t>& slots, int32_t slot) {
  return slot >= 0 && std::find(slots.begin(), slots.end(), slot) != slots.end();
}

static int32_t first_argument(const AtenStep& a) {
  std::vector<int32_t> slots;
  a.args.at(0).read_slots(slots);
  return slots.at(0);
}

// Why no recording can have this live step in between, or nothing. All of a recording's memory is the next one's when
// it has ended, so that each collective has to be waited for in it.
std::string Graphs::not_live(const AtenStep& a) const {
  if (draws_) return "random numbers are drawn beside " + a.name;
  std::vector<int32_t> waited, read = p_.outputs;
  for (const Step& s : p_.steps) {
    if (s.op == Step::kFree) continue;
    read.push_back(s.src);
    read.insert(read.end(), s.slots.begin(), s.slots.end());
    if (!s.aten) continue;
    if (s.aten->waits) waited.push_back(first_argument(*s.aten));
    else
      for (const AtenArg& arg : s.aten->args) arg.read_slots(read);
  }
  if (a.waits) {
    for (const Step& s : p_.steps)
      if (s.aten && s.aten->apart && has(s.aten->outs, first_argument(a))) return "";
    return "it waits for what something else has started";
  }
  for (int32_t slot : a.outs)
    if (!has(waited, slot) || (!a.in_place() && has(read, slot))) return a.name + " is not waited for";
  return a.outs.empty() ? a.name + " is not waited for" : "";
}

std::vector<Piece> Graphs::pieces() const {
  std::vector<Piece> found;
  size_t from = 0;
  int32_t lives = 0;
  for (size_t k = 0; k < p_.steps.size(); ++k) {
    const Step& s = p_.steps[k];
    if (s.op != Step::kAten || !s.aten->is_live()) continue;
    if (from < k) found.push_back({from, k});
    found.push_back({k, k + 1, nullptr, lives++});
    from = k + 1;
  }
  if (from < p_.steps.size()) found.push_back({from, p_.steps.size()});
  return found;
}

// While the steps around it are recorded nothing is communicated: a live step's results are told without it.
void Graphs::make_live(Recording& r, const Piece& piece, Run& steps, int device) const {
  const AtenStep& a = *p_.steps[piece.from].aten;
  Live live{piece.from, {}};
  if (a.waits) {
    int32_t slot = first_argument(a);
    for (size_t k = 0; k < r.lives.size(); ++k) {
      const AtenStep& started = *p_.steps[r.lives[k].step].aten;
      if (!started.apart || !has(started.outs, slot)) continue;
      live.waited = (int32_t)k;
      live.result = std::find(started.outs.begin(), started.outs.end(), slot) - started.outs.begin();
      if (!started.in_place()) live.copied = steps.expected(a, 0, device);
    }
    steps.put(a.outs.at(0), live.copied.defined() ? Tensor(live.copied) : Tensor(steps.tensor_of(slot)));
  } else {
    live.arguments = steps.arguments_of(a);
    const c10::IValue given = live.arguments.at(0);
    std::vector<Tensor> tensors;
    if (given.isTensor()) tensors.push_back(given.toTensor());
    else tensors = given.toTensorVector();
    for (size_t i = 0; i < a.outs.size() && a.in_place(); ++i)
      if (a.outs[i] >= 0) steps.put(a.outs[i], Tensor(tensors.at(i)));
    // It is used where it lies, however often the memory is another tensor's in between.
    for (Tensor& t : tensors) t = placed(t, address_of(t));
    if (given.isTensor()) live.arguments[0] = tensors[0];
    else live.arguments[0] = std::move(tensors);
  }
  r.lives.push_back(std::move(live));
}

// Makes a live step. `made`: the results of those before it.
void Graphs::call_live(const Recording& r, const Piece& piece, Run& run, std::vector<torch::jit::Stack>& made) const {
  const Live& live = r.lives[piece.live];
  torch::jit::Stack stack = live.arguments;
  if (live.waited >= 0) {
    const c10::IValue& started = made.at(live.waited).at(0);
    stack.push_back(started.isTensor() ? started.toTensor() : started.toTensorVector().at(live.result));
  }
  run.call(*p_.steps[live.step].aten, stack);
  if (live.copied.defined()) live.copied.copy_(stack.at(0).toTensor());
  made.push_back(std::move(stack));
}

}  // namespace jit
