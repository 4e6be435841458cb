// One run of a plan: slots, registers and the interpreter of the steps.
#pragma once

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <type_traits>

#include "plan_graphs.h"
#include "plan_memory.h"
#include "plan_program.h"
#include "ranges.h"
#include "undo.h"
#include "vjp.h"

namespace jit {

struct Slot {
  Tensor tensor;
  c10::intrusive_ptr<c10::StorageImpl> storage;  // of a lazy slot
  void* pointer = nullptr;
  int64_t offset = 0;          // of a lazy slot, in elements from the storage's start
  const Desc* desc = nullptr;  // sizes and strides of a lazy slot
  caffe2::TypeMeta meta;
  c10::Device device = kCpu;
  bool borrowed = false;

  inline static const c10::Device kCpu{c10::kCPU};  // making one checks it

  void clear() {
    // The reference of a borrowed tensor is the caller's.
    if (borrowed) (void)tensor.unsafeReleaseTensorImpl();
    borrowed = false;
    tensor.reset();
    storage.reset();
    pointer = nullptr;
    desc = nullptr;
  }
};

class Run {
 public:
  Run(const Program& program) : p_(program) {
    void* room = inline_slots_;
    if (p_.n_slots > kInline) {
      heap_slots_.reset(new char[p_.n_slots * sizeof(Slot)]);
      room = heap_slots_.get();
    }
    slots_ = static_cast<Slot*>(room);
    for (int i = 0; i < p_.n_slots; ++i) new (slots_ + i) Slot();
    if (p_.regs.size() <= kInlineRegs) {
      regs_ = inline_regs_;
    } else {
      heap_regs_.reset(new int64_t[p_.regs.size()]);
      regs_ = heap_regs_.get();
    }
  }

  ~Run() {
    for (int i = 0; i < p_.n_slots; ++i) {
      if (slots_[i].borrowed) (void)slots_[i].tensor.unsafeReleaseTensorImpl();  // the reference is the caller's
      slots_[i].~Slot();
    }
  }

  void set_input(int i, const Tensor& t) {
    slots_[i].tensor =
        Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(t.unsafeGetTensorImpl()));
    slots_[i].borrowed = true;
  }

  // An input that the run lets go of behind the last step that reads it.
  void own_input(int i, Tensor&& t) {
    slots_[i].tensor = std::move(t);
    owns_inputs_ = true;
  }

  void evaluate_regs(const int64_t* ints) {
    if (!p_.regs.empty()) std::memcpy(regs_, p_.reg_values.data(), p_.regs.size() * sizeof(int64_t));
    for (int32_t i : p_.computed) {
      const Reg& r = p_.regs[i];
      switch (r.op) {
        case Reg::kSize: regs_[i] = slots_[r.a].tensor.size(r.b); break;
        case Reg::kStride: regs_[i] = slots_[r.a].tensor.stride(r.b); break;
        case Reg::kInt: regs_[i] = ints[r.a]; break;
        case Reg::kFloorDiv:
        case Reg::kMod: TORCH_CHECK(regs_[r.b] != 0, "a plan divides a size by zero"); [[fallthrough]];
        default: regs_[i] = combine(r.op, regs_[r.a], regs_[r.b]);
      }
    }
  }

  int64_t input_bytes() const {
    int64_t n = p_.const_bytes;
    for (int i = 0; i < p_.n_inputs; ++i) n += slots_[i].tensor.numel() * (int64_t)slots_[i].tensor.itemsize();
    return n;
  }

  int cuda_device() const {
    if (p_.cuda_index >= 0) return p_.cuda_index;
    for (int i = 0; i < p_.n_inputs; ++i)
      if (slots_[i].tensor.is_cuda()) return slots_[i].tensor.get_device();
    return -1;
  }

  // The steps that may raise. They write nothing that was there before.
  void compute(int device, void* stream) {
    steps(0, p_.commit, device, stream);
    faults.reach("the end of a plan");
  }

  // Raises what the steps of the commit could raise.
  void check_commit(int device) {
    int64_t ints[kMaxInts];
    for (size_t k = p_.commit; k < p_.steps.size(); ++k) {
      const Step& s = p_.steps[k];
      if (s.op == Step::kGpu && !s.programs.empty()) {
        check_together(*s.kernel, device, s.slots.size() / s.programs.size());
      } else if (s.op == Step::kGpu) {
        for (size_t i = 0; i < s.ints.size(); ++i) ints[i] = regs_[s.ints[i]];
        int64_t grid[3] = {regs_[s.grid[0]], regs_[s.grid[1]], regs_[s.grid[2]]};
        check_launch(*s.kernel, device, s.slots.size(), ints, grid);
      } else if (s.op == Step::kCopy) {
        Slot &d = slots_[s.dst], &src = slots_[s.src];
        pointer(d);
        if (block_bytes(d, src) < 0) {
          at::assert_no_internal_overlap(tensor(d));
          tensor(src);
        }
      }
    }
  }

  // The steps that write what was there before.
  void commit(int device, void* stream) { steps(p_.commit, p_.steps.size(), device, stream); }

  // Puts back what the run has changed beside tensors, and tells what cannot be put back.
  void failed(bool committing) noexcept {
    if (!committing) generators_.restore();
    note_failure(committing, std::move(happened_));
  }

 private:
  void steps(size_t from, size_t to, int device, void* stream) {
    if (C10_UNLIKELY(watched_)) perform<true>(from, to, device, stream);
    else perform<false>(from, to, device, stream);
  }

  // The tensors that a kernel is given, for profilers.
  std::vector<c10::IValue> given_to(const Step& s) {
    std::vector<c10::IValue> tensors;
    for (int32_t i : s.slots)
      if (const Tensor& t = tensor(slots_[i]); t.defined()) tensors.emplace_back(t);
    return tensors;
  }

  // `watched`: kernels are told to profilers.
  template <bool watched>
  void perform(size_t from, size_t to, int device, void* stream) {
    void* pointers[kMaxPointers];
    int64_t ints[kMaxInts];
    const bool captured =
        (p_.has_gpu || (p_.has_products && device >= 0)) && from < to && begin_launches(device, stream);
    const auto last_death = owns_inputs_ ? p_.deaths.end() : p_.deaths.begin();
    auto death = owns_inputs_
                     ? std::lower_bound(p_.deaths.begin(), p_.deaths.end(), std::make_pair((int32_t)from, (int32_t)-1))
                     : p_.deaths.begin();
    for (size_t index = from; index < to; ++index) {
      const Step& s = p_.steps[index];
      if (skipped_ && (*skipped_)[index]) continue;
      if (index < p_.commit) faults.reach("a step of a plan");
      [[maybe_unused]] std::conditional_t<watched, Range, Nothing> range;
      if constexpr (watched)
        if (s.op == Step::kCpu || s.op == Step::kGpu) range.begin_operation(s.shown, [&] { return given_to(s); });
      switch (s.op) {
        case Step::kCpu: {
          for (size_t i = 0; i < s.slots.size(); ++i) pointers[i] = pointer(slots_[s.slots[i]]);
          for (size_t i = 0; i < s.ints.size(); ++i) ints[i] = regs_[s.ints[i]];
          s.function(pointers, ints);
          break;
        }
        case Step::kGpu: {
          if (!s.programs.empty()) {
            launch_together(s, device, stream, captured);
            break;
          }
          for (size_t i = 0; i < s.slots.size(); ++i) pointers[i] = pointer(slots_[s.slots[i]]);
          for (size_t i = 0; i < s.ints.size(); ++i) ints[i] = regs_[s.ints[i]];
          int64_t grid[3] = {regs_[s.grid[0]], regs_[s.grid[1]], regs_[s.grid[2]]};
          launch(*s.kernel, device, stream, captured, pointers, s.slots.size(), ints, grid);
          break;
        }
        case Step::kAlloc: alloc(s, device); break;
        case Step::kArena: {
          Slot& d = slots_[s.dst];
          d.clear();
          d.device = on(s.desc.device, device);
          int64_t bytes = regs_[s.reg];
          TORCH_CHECK(bytes >= 0, "a plan allocates an arena of negative size");
          d.storage = new_storage((size_t)bytes, d.device);
          d.pointer = d.storage->mutable_data();
          d.meta = caffe2::TypeMeta::Make<uint8_t>();
          break;
        }
        case Step::kTemp: {
          Slot &d = slots_[s.dst], &arena = slots_[s.src];
          d.clear();
          int64_t at = regs_[s.reg];
          d.storage = arena.storage;
          d.pointer = static_cast<char*>(arena.pointer) + at;
          d.offset = at / (int64_t)s.desc.meta.itemsize();
          d.desc = &s.desc;
          d.meta = s.desc.meta;
          d.device = arena.device;
          break;
        }
        case Step::kView: view(s); break;
        case Step::kCopy: index = copy(index, to); break;
        case Step::kFlag: {
          Slot& d = slots_[s.dst];
          d.clear();
          flag_ = 0;
          d.pointer = &flag_;
          break;
        }
        case Step::kCheck:
          // 2: an error that eager reports as RuntimeError.
          TORCH_CHECK(flag_ != 2, s.text);
          TORCH_CHECK_INDEX(flag_ == 0, s.text);
          break;
        case Step::kFree:
          if (s.dst >= p_.n_inputs && !(kept_ && (*kept_)[s.dst]))
            slots_[s.dst].clear();  // inputs are the caller's, and views of them may yet be returned
          break;
        case Step::kAten:
          if (s.aten->products) {
            // Without PyTorch's operator, which would tell of itself.
            if constexpr (watched)
              if (device >= 0) range.begin_operation(s.aten->name, [] { return std::vector<c10::IValue>(); });
            if (product(*s.aten, device, stream)) break;
          }
          if (timing_ && s.aten->waits) timing_->rest(stream);
          aten(*s.aten, device);
          if (timing_ && s.aten->waits) timing_->go_on(stream);
          break;
        case Step::kVjp: vjp(*s.aten, device); break;
      }
      for (; death != last_death && death->first <= (int32_t)index; ++death)
        if (!slots_[death->second].borrowed) slots_[death->second].clear();
    }
  }

  struct Nothing {};

  // Launches that are one: of each its programs, and its arguments in a row.
  void launch_together(const Step& s, int device, void* stream, bool captured) {
    size_t n = s.programs.size(), n_pointers = s.slots.size() / n, n_ints = s.ints.size() / n;
    c10::SmallVector<int64_t, 64> programs;
    c10::SmallVector<uint64_t, 512> arguments;
    for (size_t k = 0; k < n; ++k) {
      programs.push_back(regs_[s.programs[k]]);
      for (size_t i = k * n_pointers; i < (k + 1) * n_pointers; ++i)
        arguments.push_back(reinterpret_cast<uint64_t>(pointer(slots_[s.slots[i]])));
      for (size_t i = k * n_ints; i < (k + 1) * n_ints; ++i) arguments.push_back((uint64_t)regs_[s.ints[i]]);
    }
    jit::launch_together(*s.kernel, device, stream, captured, n, programs.data(), arguments.data(),
                         n_pointers + n_ints);
  }

  // The bytes to be copied where two slots are laid out alike without gaps, on the CPU; -1 where they are not, or where
  // there are so many that threads share them.
  int64_t block_bytes(Slot& d, Slot& s) {
    constexpr int64_t kShared = 256 << 10;
    const Tensor& to = tensor(d);
    if (!to.is_cpu() || !to.is_contiguous() || to.is_conj() || to.is_neg()) return -1;
    int64_t bytes = to.numel() * (int64_t)to.itemsize();
    if (bytes > kShared) return -1;
    if (s.desc) {
      if (s.meta != to.dtype() || s.device != to.device() || s.desc->sizes.size() != (size_t)to.dim()) return -1;
      for (size_t i = 0; i < s.desc->sizes.size(); ++i)
        if (regs_[s.desc->sizes[i]] != to.size(i) || (regs_[s.desc->strides[i]] != to.stride(i) && to.size(i) != 1))
          return -1;
      return bytes;
    }
    const Tensor& from = tensor(s);
    return from.is_cpu() && from.dtype() == to.dtype() && from.sizes() == to.sizes() && from.is_contiguous() &&
                   !from.is_conj() && !from.is_neg()
               ? bytes
               : -1;
  }

  // Copies of one kind that follow each other on a GPU are made together. Returns the last step that is done.
  size_t copy(size_t index, size_t to) {
    const Step& s = p_.steps[index];
    Slot &d = slots_[s.dst], &src = slots_[s.src];
    int64_t bytes = block_bytes(d, src);
    if (bytes >= 0) {
      if (bytes) std::memmove(pointer(d), pointer(src), (size_t)bytes);
      return index;
    }
    const Tensor& target = tensor(d);
    size_t last = index;
    if (target.is_cuda()) {
      auto alike = [&](const Step& c) {
        return c.op == Step::kCopy && tensor(slots_[c.dst]).is_cuda() &&
               tensor(slots_[c.dst]).dtype() == target.dtype();
      };
      while (last + 1 < to && alike(p_.steps[last + 1])) ++last;
    }
    if (last == index) {
      target.copy_(tensor(src));
      return index;
    }
    std::vector<Tensor> targets, sources;
    for (size_t k = index; k <= last; ++k) {
      targets.push_back(tensor(slots_[p_.steps[k].dst]));
      sources.push_back(tensor(slots_[p_.steps[k].src]));
    }
    at::_foreach_copy_(targets, sources);
    return last;
  }

 public:
  // An input whose address kernels take for a multiple of 16, and is none, lies in aligned memory of ours while the
  // plan runs.
  void realign() {
    c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                             c10::autocast_dispatch_keyset);
    for (int32_t i : p_.aligned) {
      const Tensor& t = slots_[i].tensor;
      if (!t.is_cuda() || reinterpret_cast<uintptr_t>(t.unsafeGetTensorImpl()->data()) % 16 == 0) continue;
      Tensor copy = fresh_copy(t, t.strides());
      realigned_.emplace_back(i, t);
      slots_[i].clear();
      slots_[i].tensor = std::move(copy);
    }
  }

  bool has_realigned() const { return !realigned_.empty(); }

  // Puts the inputs back that ``realign`` replaced, with what the plan has written to them.
  void restore() {
    if (realigned_.empty()) return;
    c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                             c10::autocast_dispatch_keyset);
    for (auto& [i, original] : realigned_) {
      if (std::find(p_.mutates.begin(), p_.mutates.end(), i) != p_.mutates.end()) original.copy_(slots_[i].tensor);
      slots_[i].clear();
      set_input(i, original);
    }
  }

  void bump_versions() {
    for (int32_t i : p_.mutates) {
      const Tensor& t = slots_[i].tensor;
      if (t.defined() && !t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
    }
  }

  // The tensor to return for a slot. A view of an input or of another result is made by the public operator, so that it
  // is a view to autograd too.
  Tensor result(int32_t slot) {
    Slot& s = slots_[slot];
    int32_t root = p_.view_root[slot];
    if (root >= 0 && slot >= p_.n_inputs && s.desc) {
      c10::SmallVector<int64_t, 8> sizes, strides;
      shape(*s.desc, sizes, strides);
      int64_t offset = s.offset;
      for (auto& [i, original] : realigned_)
        if (i == root) offset += original.storage_offset();
      return at::as_strided(root_tensor(root), sizes, strides, offset);
    }
    if (root < 0 && p_.view_owner[slot] >= 0 && s.desc) {
      c10::SmallVector<int64_t, 8> sizes, strides;
      shape(*s.desc, sizes, strides);
      return at::as_strided(tensor(slots_[p_.view_owner[slot]]), sizes, strides, s.offset);
    }
    return tensor(s);
  }

  // The same with no autograd view: a tensor on the slot's memory.
  Tensor plain_result(int32_t slot) { return tensor(slots_[slot]); }

  int64_t reg(int32_t i) const { return regs_[i]; }

  // What recordings need of a run (plan_graphs.h).
  const int64_t* regs() const { return regs_; }
  void take_regs(const Run& other) {
    if (!p_.regs.empty()) std::memcpy(regs_, other.regs_, p_.regs.size() * sizeof(int64_t));
  }
  void watch() { watched_ = true; }
  bool is_watched() const { return watched_; }
  void keep(const std::vector<bool>* slots) { kept_ = slots; }  // which steps do not free
  void make(const Step& s, int device) { s.op == Step::kView ? view(s) : alloc(s, device); }
  void put(int32_t slot, Tensor&& t) {
    slots_[slot].clear();
    slots_[slot].tensor = std::move(t);
  }
  void skip(const std::vector<bool>* steps) { skipped_ = steps; }
  void time(std::shared_ptr<Timing> timing) { timing_ = std::move(timing); }
  Timing* timing() const { return timing_.get(); }
  int64_t bytes_of(const Desc& d) const {
    c10::SmallVector<int64_t, 8> sizes, strides;
    shape(d, sizes, strides);
    return extent_bytes(sizes, strides, (int64_t)d.meta.itemsize());
  }
  void one_step(size_t k, int device, void* stream) { steps(k, k + 1, device, stream); }
  void steps_from(size_t from, size_t to, int device, void* stream) { steps(from, to, device, stream); }
  torch::jit::Stack arguments_of(const AtenStep& a) {
    torch::jit::Stack stack;
    stack.reserve(std::max(a.args.size(), a.outs.size()));
    Source source(*this);
    for (const AtenArg& arg : a.args) stack.push_back(arg.value(source));
    return stack;
  }
  // Memory for result `i`, as it is expected.
  Tensor expected(const AtenStep& a, size_t i, int device) const {
    const AtenStep::Expect& e = a.expect.at(i);
    TORCH_CHECK(e.given && e.dtype, "it is not known what ", a.name, " gives");
    c10::SmallVector<int64_t, 8> sizes, strides;
    for (int32_t r : e.sizes) sizes.push_back(regs_[r]);
    for (int32_t r : e.strides) strides.push_back(regs_[r]);
    auto meta = c10::scalarTypeToTypeMeta(*e.dtype);
    c10::Device where = device < 0 ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, (c10::DeviceIndex)device);
    auto bytes = extent_bytes(sizes, strides, (int64_t)meta.itemsize());
    return new_tensor(new_storage((size_t)bytes, where), meta, where, sizes, strides, 0);
  }
  // Calls an operator, whose results are then on the stack.
  void call(const AtenStep& a, torch::jit::Stack& stack) {
    if (!a.once) return a.op->callBoxed(stack);
    happened_.push_back({*a.op, {}, true});
    a.op->callBoxed(stack);
    for (const auto& v : stack) {
      if (v.isTensor()) happened_.back().results.push_back(v.toTensor());
      if (v.isTensorList())
        for (const Tensor& t : v.toTensorVector()) happened_.back().results.push_back(t);
    }
    happened_.back().raised = false;
  }
  // Puts an operator's results where the plan has them.
  void take_results(const AtenStep& a, torch::jit::Stack& stack) {
    auto take = [&](size_t i, Tensor t) {
      if (i >= a.outs.size() || a.outs[i] < 0) return;
      if (i < a.expect.size() && a.expect[i].given) t = aligned(with_layout(std::move(t), a.expect[i], a));
      Slot& d = slots_[a.outs[i]];
      d.clear();
      d.tensor = std::move(t);
    };
    if (a.returns_list) {
      auto list = stack.at(0).toTensorVector();
      TORCH_CHECK(list.size() >= a.outs.size(), a.name, " returned ", list.size(), " tensors, the plan expects ",
                  a.outs.size());
      for (size_t i = 0; i < a.outs.size(); ++i) take(i, std::move(list[i]));
    } else {
      for (size_t i = 0; i < a.outs.size(); ++i) {
        if (a.outs[i] < 0) continue;
        take(i, result_of(std::move(stack.at(i)), a, i));
      }
    }
  }
  void undo_draws() noexcept { generators_.restore(); }
  void* address_of(int32_t slot) { return pointer(slots_[slot]); }
  const Tensor& tensor_of(int32_t slot) { return tensor(slots_[slot]); }

  static constexpr size_t kMaxPointers = 512, kMaxInts = 512;

 private:
  static constexpr int kInline = 24, kInlineRegs = 64;

  // An input as the caller has it.
  const Tensor& root_tensor(int32_t i) {
    for (auto& [k, original] : realigned_)
      if (k == i) return original;
    return slots_[i].tensor;
  }

  static c10::Device on(c10::Device d, int device) {
    return d.is_cuda() && !d.has_index() && device >= 0 ? c10::Device(c10::kCUDA, (c10::DeviceIndex)device) : d;
  }

  void shape(const Desc& d, c10::SmallVectorImpl<int64_t>& sizes, c10::SmallVectorImpl<int64_t>& strides) const {
    for (int32_t r : d.sizes) sizes.push_back(regs_[r]);
    for (int32_t r : d.strides) strides.push_back(regs_[r]);
  }

  void* pointer(Slot& s) {
    if (!s.pointer && s.tensor.defined()) s.pointer = address(s.tensor.unsafeGetTensorImpl());
    return s.pointer;
  }

  // impl->mutable_data() without its virtual call.
  static void* address(c10::TensorImpl* impl) {
    c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
    if (!storage || impl->numel() == 0) return impl->mutable_data();
    return static_cast<char*>(storage->mutable_data()) + impl->storage_offset() * (int64_t)impl->dtype().itemsize();
  }

  const Tensor& tensor(Slot& s) {
    if (!s.tensor.defined() && s.storage) {
      c10::SmallVector<int64_t, 8> sizes, strides;
      if (s.desc) {
        shape(*s.desc, sizes, strides);
      } else {  // an arena itself
        sizes.push_back((int64_t)s.storage->nbytes());
        strides.push_back(1);
      }
      s.tensor = new_tensor(s.storage, s.meta, s.device, sizes, strides, s.offset);
    }
    return s.tensor;
  }

  void alloc(const Step& s, int device) {
    Slot& d = slots_[s.dst];
    d.clear();
    c10::SmallVector<int64_t, 8> sizes, strides;
    shape(s.desc, sizes, strides);
    int64_t bytes = extent_bytes(sizes, strides, (int64_t)s.desc.meta.itemsize());
    c10::Device where = on(s.desc.device, device);
    auto storage = new_storage((size_t)bytes, where);
    d.pointer = storage->mutable_data();
    d.tensor = new_tensor(std::move(storage), s.desc.meta, where, sizes, strides, 0);
  }

  void view(const Step& s) {
    Slot &d = slots_[s.dst], &src = slots_[s.src];
    c10::intrusive_ptr<c10::StorageImpl> storage;
    int64_t offset;
    void* base = pointer(src);
    caffe2::TypeMeta meta;
    c10::Device device = c10::kCPU;
    if (src.tensor.defined()) {
      c10::TensorImpl* impl = src.tensor.unsafeGetTensorImpl();
      storage = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl->unsafe_storage().unsafeGetStorageImpl());
      offset = impl->storage_offset();
      meta = impl->dtype();
      device = impl->device();
    } else {
      TORCH_CHECK(src.storage, "a plan views slot ", s.src, ", which holds nothing");
      storage = src.storage;
      offset = src.offset;
      meta = src.meta;
      device = src.device;
    }
    d.clear();
    int64_t shift = regs_[s.reg];
    d.storage = std::move(storage);
    d.offset = offset + shift;
    d.pointer = base ? static_cast<char*>(base) + shift * (int64_t)meta.itemsize() : nullptr;
    d.desc = &s.desc;
    d.meta = meta;
    d.device = device;
  }

  struct Source final : ArgSource {
    Run& run;
    const std::vector<int32_t>* replaced = nullptr;  // of a vjp step: the slots that ``leaves`` stand for
    const std::vector<Tensor>* leaves = nullptr;
    explicit Source(Run& r) : run(r) {}
    const Tensor& slot(int32_t i) override {
      if (replaced) {
        auto at = std::find(replaced->begin(), replaced->end(), i);
        if (at != replaced->end()) return (*leaves)[at - replaced->begin()];
      }
      return held(i);
    }
    const Tensor& wanted(int32_t k) override { return leaves->at(k); }
    const Tensor& held(int32_t i) {
      const Tensor& t = run.tensor(run.slots_[i]);
      TORCH_CHECK(t.defined(), "a plan reads slot ", i, ", which holds nothing");
      return t;
    }
    int64_t reg(int32_t i) override { return run.regs_[i]; }
  };

  // A slot as a matrix on the GPU, without a tensor where there is none.
  bool matrix(Slot& s, int device, Matrix& m) {
    if (s.tensor.defined()) {
      const c10::TensorImpl* t = s.tensor.unsafeGetTensorImpl();
      if (!t->is_cuda() || s.tensor.get_device() != device || t->dim() > 3 || t->numel() == 0 || t->is_conj() ||
          t->layout() != at::kStrided || s.tensor.is_neg())
        return false;
      m.dtype = s.tensor.scalar_type();
      m.dims = (int)t->dim();
      for (int i = 0; i < m.dims; ++i) m.sizes[i] = t->size(i), m.strides[i] = t->stride(i);
    } else {
      if (!s.desc || !s.device.is_cuda() || s.desc->sizes.size() > 3) return false;
      m.dtype = c10::typeMetaToScalarType(s.meta);
      m.dims = (int)s.desc->sizes.size();
      for (int i = 0; i < m.dims; ++i) m.sizes[i] = regs_[s.desc->sizes[i]], m.strides[i] = regs_[s.desc->strides[i]];
    }
    m.data = pointer(s);
    return m.data;
  }

  bool product(const AtenStep& s, int device, void* stream) {
    if (device < 0) return false;
    Matrix a, b, bias, c;
    const auto& p = s.product;
    if (!matrix(slots_[p.a], device, a) || !matrix(slots_[p.b], device, b) || !matrix(slots_[p.out], device, c) ||
        (p.bias >= 0 && !matrix(slots_[p.bias], device, bias)))
      return false;
    return s.products->run(device, stream, a, b, p.bias >= 0 ? &bias : nullptr, c);
  }

  void aten(const AtenStep& a, int device) {
    torch::jit::Stack stack = arguments_of(a);
    if (a.draws) generators_.note(device, stack);
    call(a, stack);
    take_results(a, stack);
  }

  // A result as a tensor; see graph/number_results.py.
  static Tensor result_of(c10::IValue&& v, const AtenStep& a, size_t i) {
    if (v.isTensor()) return std::move(v).toTensor();
    TORCH_CHECK(v.isInt() || v.isDouble() || v.isBool(), a.name, " returned neither a tensor nor a number as result ",
                i);
    at::ScalarType dtype = v.isInt() ? at::kLong : v.isDouble() ? at::kDouble : at::kBool;
    return at::scalar_tensor(v.toScalar(), at::TensorOptions(dtype));
  }

  // New memory of an operator, which kernels take for aligned. Some operators, as `diagonal_scatter`, make a storage
  // like an argument's, and begin in it where that one did.
  Tensor aligned(Tensor t) {
    if (!t.defined() || !t.is_cuda() || !t.has_storage() || t.storage().use_count() > 1) return t;
    if (reinterpret_cast<uintptr_t>(t.unsafeGetTensorImpl()->data()) % 16 == 0) return t;
    return fresh_copy(t, t.strides());
  }

  void vjp(const AtenStep& a, int device) {
    Source source(*this);
    std::vector<Tensor> leaves, tangents;
    for (int32_t s : a.wanted) leaves.push_back(fresh_leaf(source.held(s)));
    for (int32_t s : a.tangents) tangents.push_back(s < 0 ? Tensor() : source.held(s));
    source.replaced = &a.wanted;
    source.leaves = &leaves;
    torch::jit::Stack stack;
    for (const AtenArg& arg : a.args) stack.push_back(arg.value(source));
    if (a.draws) generators_.note(device, stack);
    std::vector<Tensor> gradients = operator_gradients(*a.op, std::move(stack), leaves, tangents);
    for (size_t i = 0; i < a.outs.size(); ++i) {
      if (a.outs[i] < 0) continue;
      Tensor t = std::move(gradients.at(i));
      if (i < a.expect.size() && a.expect[i].given) t = with_layout(std::move(t), a.expect[i], a);
      Slot& d = slots_[a.outs[i]];
      d.clear();
      d.tensor = std::move(t);
    }
  }

  // Checks the sizes that were predicted and copies when the strides are others: kernels were generated for the
  // predicted ones.
  Tensor with_layout(Tensor t, const AtenStep::Expect& e, const AtenStep& a) {
    if (!t.defined()) return t;
    bool same = (size_t)t.dim() == e.sizes.size();
    for (size_t i = 0; same && i < e.sizes.size(); ++i) same = t.size(i) == regs_[e.sizes[i]];
    if (!same) {
      std::vector<int64_t> sizes;
      for (int32_t r : e.sizes) sizes.push_back(regs_[r]);
      TORCH_CHECK(false, "jit: ", a.name, " returned sizes ", t.sizes(), " where ", sizes, " were predicted");
    }
    TORCH_CHECK(!e.dtype || t.scalar_type() == *e.dtype, "jit: ", a.name, " returned ", t.scalar_type(), " where ",
                *e.dtype, " was predicted");
    bool strides_match = true;
    for (size_t i = 0; i < e.strides.size(); ++i) strides_match &= t.stride(i) == regs_[e.strides[i]] || t.size(i) == 1;
    if (strides_match || t.numel() == 0) return t;
    c10::SmallVector<int64_t, 8> strides;
    for (int32_t r : e.strides) strides.push_back(regs_[r]);
    return fresh_copy(t, strides);
  }

  const Program& p_;
  alignas(Slot) char inline_slots_[kInline * sizeof(Slot)];  // constructed as far as the plan needs them
  std::unique_ptr<char[]> heap_slots_;
  Slot* slots_;
  int64_t inline_regs_[kInlineRegs];
  std::unique_ptr<int64_t[]> heap_regs_;
  int64_t* regs_;
  std::vector<std::pair<int32_t, Tensor>> realigned_;
  GeneratorStates generators_;
  std::vector<Happened> happened_;
  const std::vector<bool>*kept_ = nullptr, *skipped_ = nullptr;
  std::shared_ptr<Timing> timing_;
  bool owns_inputs_ = false, watched_ = false;
  int32_t flag_ = 0;  // set by a kernel that meets an index out of range
};

}  // namespace jit
