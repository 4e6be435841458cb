// The plan executor: interprets the steps of a Plan with no Python in between.
//
// A slot starts out as a pointer with a lazy description (storage, dtype, sizes); a Tensor object is made only when an ATen step or an output needs one.
// All state of a run lives in the run, so that a plan can be entered again, by recursion or from other threads.
#include "plan.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/as_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include "aten_args.h"
#include "cuda.h"
#include "pool.h"
#include "regs.h"

namespace jit {
namespace {

using at::Tensor;

// Bytes of input and constant-size output above which the GIL is given up for a run (doing so costs about 0.1 us).
constexpr int64_t kReleaseGilBytes = 64 << 10;

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
  struct Expect { bool given = false; std::vector<int32_t> sizes, strides; };
  std::vector<Expect> expect;
  bool returns_list = false;
};

struct Step {
  enum Op : uint8_t { kAlloc, kArena, kTemp, kCpu, kGpu, kAten, kView, kCopy, kFree, kFlag, kCheck } op;
  int32_t dst = -1, src = -1, reg = -1;
  Desc desc;
  void (*function)(void**, const int64_t*) = nullptr;
  std::vector<int32_t> slots, ints;
  std::array<int32_t, 3> grid{};
  std::shared_ptr<GpuKernel> kernel;
  std::unique_ptr<AtenStep> aten;
  std::string text;
};

struct Program {
  int32_t n_inputs = 0, n_ints = 0, n_slots = 0;
  std::vector<Reg> regs;
  std::vector<int64_t> reg_values;      // constants filled in
  std::vector<int32_t> computed;        // registers that are evaluated on each run
  std::vector<Step> steps;
  std::vector<int32_t> outputs, mutates;
  std::vector<int32_t> view_root;       // per slot: the input that the slot is a view of, or -1
  bool has_aten = false, has_gpu = false, has_cuda_alloc = false;
  int32_t cuda_index = -1;              // from the first CUDA device that the steps name
  int64_t const_bytes = 0;
  size_t max_pointers = 0, max_ints = 0;
};

struct Slot {
  Tensor tensor;
  c10::intrusive_ptr<c10::StorageImpl> storage;  // of a lazy slot
  void* pointer = nullptr;
  int64_t offset = 0;                            // of a lazy slot, in elements from the storage's start
  const Desc* desc = nullptr;                    // sizes and strides of a lazy slot
  caffe2::TypeMeta meta;
  c10::Device device{c10::kCPU};
  bool borrowed = false;

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

c10::intrusive_ptr<c10::StorageImpl> new_storage(size_t bytes, c10::Device device) {
  c10::Allocator* allocator = device.is_cpu() ? cpu_pool() : c10::GetAllocator(device.type());
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, allocator->allocate(bytes), allocator, /*resizable=*/true);
}

Tensor new_tensor(c10::intrusive_ptr<c10::StorageImpl> storage, caffe2::TypeMeta meta, c10::Device device, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  auto key = device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  Tensor t = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), c10::DispatchKeySet(key), meta);
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return t;
}

// Bytes from the storage's start to behind the last element.
int64_t extent_bytes(c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t itemsize) {
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    TORCH_CHECK(sizes[i] >= 0, "a plan allocates a tensor of negative size ", sizes[i]);
    if (sizes[i] == 0) return 0;
    last += (sizes[i] - 1) * strides[i];
  }
  return (last + 1) * itemsize;
}

class Run {
 public:
  Run(const Program& program) : p_(program) {
    slots_ = p_.n_slots <= kInline ? inline_slots_ : (heap_slots_.reset(new Slot[p_.n_slots]), heap_slots_.get());
    if (p_.regs.size() <= kInlineRegs) {
      regs_ = inline_regs_;
    } else {
      heap_regs_.reset(new int64_t[p_.regs.size()]);
      regs_ = heap_regs_.get();
    }
  }

  ~Run() {
    for (int i = 0; i < p_.n_inputs; ++i) slots_[i].clear();
  }

  void set_input(int i, const Tensor& t) {
    slots_[i].tensor = Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(t.unsafeGetTensorImpl()));
    slots_[i].borrowed = true;
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

  void run(int device, void* stream) {
    void* pointers[kMaxPointers];
    int64_t ints[kMaxInts];
    for (const Step& s : p_.steps) {
      switch (s.op) {
        case Step::kCpu: {
          for (size_t i = 0; i < s.slots.size(); ++i) pointers[i] = pointer(slots_[s.slots[i]]);
          for (size_t i = 0; i < s.ints.size(); ++i) ints[i] = regs_[s.ints[i]];
          s.function(pointers, ints);
          break;
        }
        case Step::kGpu: {
          for (size_t i = 0; i < s.slots.size(); ++i) pointers[i] = pointer(slots_[s.slots[i]]);
          for (size_t i = 0; i < s.ints.size(); ++i) ints[i] = regs_[s.ints[i]];
          int64_t grid[3] = {regs_[s.grid[0]], regs_[s.grid[1]], regs_[s.grid[2]]};
          launch(*s.kernel, device, stream, pointers, s.slots.size(), ints, grid);
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
        case Step::kCopy: tensor(slots_[s.dst]).copy_(tensor(slots_[s.src])); break;
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
          if (s.dst >= p_.n_inputs) slots_[s.dst].clear();  // inputs are the caller's, and views of them may yet be returned
          break;
        case Step::kAten: aten(*s.aten, device); break;
      }
    }
  }

  void bump_versions() {
    for (int32_t i : p_.mutates) {
      const Tensor& t = slots_[i].tensor;
      if (t.defined() && !t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
    }
  }

  // The tensor to return for a slot. A view of an input is made by the public operator, so that it is a view to autograd too.
  Tensor result(int32_t slot) {
    Slot& s = slots_[slot];
    int32_t root = p_.view_root[slot];
    if (root >= 0 && slot >= p_.n_inputs && s.desc) {
      c10::SmallVector<int64_t, 8> sizes, strides;
      shape(*s.desc, sizes, strides);
      return at::as_strided(root_tensor(root), sizes, strides, s.offset);
    }
    return tensor(s);
  }

  Slot& slot(int i) { return slots_[i]; }

  static constexpr size_t kMaxPointers = 512, kMaxInts = 512;

 private:
  static constexpr int kInline = 24, kInlineRegs = 64;

  const Tensor& root_tensor(int32_t i) { return slots_[i].tensor; }

  static c10::Device on(c10::Device d, int device) { return d.is_cuda() && !d.has_index() && device >= 0 ? c10::Device(c10::kCUDA, (c10::DeviceIndex)device) : d; }

  void shape(const Desc& d, c10::SmallVectorImpl<int64_t>& sizes, c10::SmallVectorImpl<int64_t>& strides) const {
    for (int32_t r : d.sizes) sizes.push_back(regs_[r]);
    for (int32_t r : d.strides) strides.push_back(regs_[r]);
  }

  void* pointer(Slot& s) {
    if (!s.pointer && s.tensor.defined()) s.pointer = s.tensor.unsafeGetTensorImpl()->mutable_data();
    return s.pointer;
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
    explicit Source(Run& r) : run(r) {}
    const Tensor& slot(int32_t i) override {
      const Tensor& t = run.tensor(run.slots_[i]);
      TORCH_CHECK(t.defined(), "a plan reads slot ", i, ", which holds nothing");
      return t;
    }
    int64_t reg(int32_t i) override { return run.regs_[i]; }
  };

  void aten(const AtenStep& a, int device) {
    torch::jit::Stack stack;
    stack.reserve(std::max(a.args.size(), a.outs.size()));
    Source source(*this);
    for (const AtenArg& arg : a.args) stack.push_back(arg.value(source));
    a.op->callBoxed(stack);
    auto take = [&](size_t i, Tensor t) {
      if (i >= a.outs.size() || a.outs[i] < 0) return;
      if (i < a.expect.size() && a.expect[i].given) t = with_layout(std::move(t), a.expect[i], a);
      Slot& d = slots_[a.outs[i]];
      d.clear();
      d.tensor = std::move(t);
    };
    if (a.returns_list) {
      auto list = stack.at(0).toTensorVector();
      TORCH_CHECK(list.size() >= a.outs.size(), a.name, " returned ", list.size(), " tensors, the plan expects ", a.outs.size());
      for (size_t i = 0; i < a.outs.size(); ++i) take(i, std::move(list[i]));
    } else {
      for (size_t i = 0; i < a.outs.size(); ++i) {
        if (a.outs[i] < 0) continue;
        TORCH_CHECK(stack.at(i).isTensor(), a.name, " did not return a tensor as result ", i);
        take(i, std::move(stack.at(i)).toTensor());
      }
    }
  }

  // Checks the sizes that were predicted and copies when the strides are others: kernels were generated for the predicted ones.
  Tensor with_layout(Tensor t, const AtenStep::Expect& e, const AtenStep& a) {
    if (!t.defined()) return t;
    bool same = (size_t)t.dim() == e.sizes.size();
    for (size_t i = 0; same && i < e.sizes.size(); ++i) same = t.size(i) == regs_[e.sizes[i]];
    if (!same) {
      std::vector<int64_t> sizes;
      for (int32_t r : e.sizes) sizes.push_back(regs_[r]);
      TORCH_CHECK(false, "jit: ", a.name, " returned sizes ", t.sizes(), " where ", sizes, " were predicted");
    }
    bool strides_match = true;
    for (size_t i = 0; i < e.strides.size(); ++i) strides_match &= t.stride(i) == regs_[e.strides[i]] || t.size(i) == 1;
    if (strides_match || t.numel() == 0) return t;
    c10::SmallVector<int64_t, 8> strides;
    for (int32_t r : e.strides) strides.push_back(regs_[r]);
    int64_t bytes = extent_bytes(t.sizes(), strides, (int64_t)t.itemsize());
    Tensor copy = new_tensor(new_storage((size_t)bytes, t.device()), t.dtype(), t.device(), t.sizes(), strides, 0);
    copy.copy_(t);
    return copy;
  }

  const Program& p_;
  Slot inline_slots_[kInline];
  std::unique_ptr<Slot[]> heap_slots_;
  Slot* slots_;
  int64_t inline_regs_[kInlineRegs];
  std::unique_ptr<int64_t[]> heap_regs_;
  int64_t* regs_;
  int32_t flag_ = 0;  // set by a kernel that meets an index out of range
};

struct NoGil {
  PyThreadState* state = nullptr;
  void release() { state = PyEval_SaveThread(); }
  void acquire() {
    if (state) PyEval_RestoreThread(state);
    state = nullptr;
  }
  ~NoGil() { acquire(); }
};

struct PlanObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  std::shared_ptr<const Program> program;
  PyObject* data;   // the Plan it was made from
  PyObject* bound;  // null, or a tuple with a tensor or None per input; replaced as a whole
  int32_t n_free;   // inputs that are given on each call
};

extern PyTypeObject PlanType;

PyObject* plan_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* names) {
  auto* self = reinterpret_cast<PlanObject*>(object);
  HANDLE_TH_ERRORS
  try {
  Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
  // The program and the bound tensors have to outlive the run, whatever other threads do to this object.
  std::shared_ptr<const Program> keep = self->program;
  const Program& p = *keep;
  Ref bound = Ref::share(self->bound);
  if ((names && PyTuple_GET_SIZE(names)) || nargs != self->n_free + p.n_ints) {
    PyErr_Format(PyExc_TypeError, "this plan takes %d tensors and %d ints by position, not %zd arguments", self->n_free, p.n_ints, nargs + (names ? PyTuple_GET_SIZE(names) : 0));
    return nullptr;
  }
  Run run(p);
  PyObject* inputs_inline[24];
  std::unique_ptr<PyObject*[]> inputs_heap;
  PyObject** inputs = inputs_inline;
  if (p.n_inputs > 24) {
    inputs_heap.reset(new PyObject*[p.n_inputs]);
    inputs = inputs_heap.get();
  }
  Py_ssize_t next = 0;
  for (int i = 0; i < p.n_inputs; ++i) {
    PyObject* o = bound ? PyTuple_GET_ITEM(bound.get(), i) : Py_None;
    if (o == Py_None) {
      o = args[next++];
      if (!THPVariable_Check(o)) {
        PyErr_Format(PyExc_TypeError, "argument %zd of the plan has to be a tensor, not %s", next - 1, Py_TYPE(o)->tp_name);
        return nullptr;
      }
    }
    inputs[i] = o;
    run.set_input(i, THPVariable_Unpack(o));
  }
  int64_t ints_inline[16];
  std::vector<int64_t> ints_heap;
  int64_t* ints = ints_inline;
  if (p.n_ints > 16) {
    ints_heap.resize(p.n_ints);
    ints = ints_heap.data();
  }
  for (int i = 0; i < p.n_ints; ++i) {
    ints[i] = PyLong_AsLongLong(args[next++]);
    if (ints[i] == -1 && PyErr_Occurred()) return nullptr;
  }
  run.evaluate_regs(ints);

  int device = -1;
  void* stream = nullptr;
  c10::OptionalDeviceGuard device_guard;
  if (p.has_gpu || p.has_cuda_alloc) {
    device = run.cuda_device();
    if (device >= 0) device_guard.reset_device(c10::Device(c10::kCUDA, (c10::DeviceIndex)device));
    TORCH_CHECK(device >= 0 || !p.has_gpu, "a plan launches GPU kernels but none of its inputs is on a GPU");
    if (p.has_gpu) stream = current_stream(device);
  }
  {
    NoGil gil;
    if (p.has_aten || p.has_gpu || run.input_bytes() >= kReleaseGilBytes) gil.release();
    if (p.has_aten) {
      c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
      run.run(device, stream);
    } else {
      run.run(device, stream);
    }
  }
  run.bump_versions();

  Ref result = Ref::steal(checked(PyTuple_New((Py_ssize_t)p.outputs.size())));
  for (size_t i = 0; i < p.outputs.size(); ++i) {
    int32_t slot = p.outputs[i];
    PyObject* o = slot < p.n_inputs ? Py_NewRef(inputs[slot]) : THPVariable_Wrap(run.result(slot));
    PyTuple_SET_ITEM(result.get(), (Py_ssize_t)i, checked(o));
  }
  return result.release();
  } catch (const PythonError&) {
    return nullptr;
  }
  END_HANDLE_TH_ERRORS
}

// ---- parsing ----------------------------------------------------------------------------------------------------------------

struct Parser {
  Program& p;

  int32_t slot(PyObject* o, const char* what) {
    int64_t i = as_int(o, what);
    if (i < 0 || i >= p.n_slots) raise(PyExc_ValueError, std::string(what) + ": slot " + std::to_string(i) + " is out of range");
    return (int32_t)i;
  }
  int32_t target(PyObject* o, const char* what) {
    int32_t i = slot(o, what);
    if (i < p.n_inputs) raise(PyExc_ValueError, std::string(what) + ": slot " + std::to_string(i) + " is an input and cannot be replaced");
    return i;
  }
  int32_t reg(PyObject* o, const char* what) {
    int64_t i = as_int(o, what);
    if (i < 0 || (size_t)i >= p.regs.size()) raise(PyExc_ValueError, std::string(what) + ": register " + std::to_string(i) + " is out of range");
    return (int32_t)i;
  }
  std::vector<int32_t> regs(PyObject* o, const char* what) {
    Items items(o, what);
    std::vector<int32_t> out;
    for (Py_ssize_t i = 0; i < items.size; ++i) out.push_back(reg(items[i], what));
    return out;
  }
  std::vector<int32_t> slots(PyObject* o, const char* what) {
    Items items(o, what);
    std::vector<int32_t> out;
    for (Py_ssize_t i = 0; i < items.size; ++i) out.push_back(slot(items[i], what));
    return out;
  }
  c10::Device device(PyObject* o) {
    c10::Device d = THPDevice_Check(o) ? reinterpret_cast<THPDevice*>(o)->device : c10::Device(as_text(o, "a device"));
    if (!d.is_cpu() && !d.is_cuda()) raise(PyExc_ValueError, "plans run on cpu and cuda only, not on " + d.str());
    if (d.is_cuda()) {
      p.has_cuda_alloc = true;
      if (d.has_index() && p.cuda_index < 0) p.cuda_index = d.index();
    }
    return d;
  }
  void layout(Desc& d, PyObject* dtype, PyObject* sizes, PyObject* strides) {
    if (!THPDtype_Check(dtype)) raise(PyExc_TypeError, std::string("expected a torch.dtype, got ") + Py_TYPE(dtype)->tp_name);
    d.dtype = reinterpret_cast<THPDtype*>(dtype)->scalar_type;
    d.meta = c10::scalarTypeToTypeMeta(d.dtype);
    shape(d, sizes, strides);
  }
  void shape(Desc& d, PyObject* sizes, PyObject* strides) {
    d.sizes = regs(sizes, "sizes");
    d.strides = regs(strides, "strides");
    if (d.sizes.size() != d.strides.size()) raise(PyExc_ValueError, "sizes and strides differ in length");
  }

  Step step(PyObject* object) {
    Items t(object, "a step");
    std::string kind = as_text(t[0], "a step's kind");
    Step s{};
    if (kind == "alloc") {
      s.op = Step::kAlloc;
      s.dst = target(t[1], "alloc");
      s.desc.device = device(t[3]);
      layout(s.desc, t[2], t[4], t[5]);
      count_const_bytes(s.desc);
    } else if (kind == "arena") {
      s.op = Step::kArena;
      s.dst = target(t[1], "arena");
      s.desc.device = device(t[2]);
      s.reg = reg(t[3], "arena");
      if (p.regs[s.reg].op == Reg::kConst) p.const_bytes += p.regs[s.reg].value;
    } else if (kind == "temp") {
      s.op = Step::kTemp;
      s.dst = target(t[1], "temp");
      s.src = target(t[2], "temp");
      s.reg = reg(t[3], "temp");
      layout(s.desc, t[4], t[6], t[7]);
    } else if (kind == "cpu") {
      s.op = Step::kCpu;
      int64_t address = as_int(t[1], "the address of a CPU kernel");
      if (!address) raise(PyExc_ValueError, "the address of a CPU kernel is 0");
      s.function = reinterpret_cast<void (*)(void**, const int64_t*)>(address);
      s.slots = slots(t[2], "cpu");
      s.ints = regs(t[3], "cpu");
    } else if (kind == "gpu") {
      s.op = Step::kGpu;
      s.slots = slots(t[2], "gpu");
      s.ints = regs(t[3], "gpu");
      s.kernel = parse_gpu_kernel(t[1], s.ints.size());
      auto grid = regs(t[4], "grid");
      if (grid.size() != 3) raise(PyExc_ValueError, "a grid has 3 registers");
      std::copy(grid.begin(), grid.end(), s.grid.begin());
      p.has_gpu = true;
    } else if (kind == "aten") {
      s.op = Step::kAten;
      s.aten = aten(t);
      p.has_aten = true;
    } else if (kind == "view") {
      s.op = Step::kView;
      s.dst = target(t[1], "view");
      s.src = slot(t[2], "view");
      shape(s.desc, t[3], t[4]);
      s.reg = reg(t[5], "view");
      p.view_root[s.dst] = p.view_root[s.src];
    } else if (kind == "copy") {
      s.op = Step::kCopy;
      s.dst = slot(t[1], "copy");
      s.src = slot(t[2], "copy");
      mutated(s.dst);
      p.has_aten = true;
    } else if (kind == "free") {
      s.op = Step::kFree;
      s.dst = slot(t[1], "free");
    } else if (kind == "flag") {
      s.op = Step::kFlag;
      s.dst = target(t[1], "flag");
    } else if (kind == "check") {
      s.op = Step::kCheck;
      s.dst = slot(t[1], "check");
      s.text = as_text(t[2], "an error's message");
    } else {
      raise(PyExc_ValueError, "unknown plan step '" + kind + "'");
    }
    if (s.op != Step::kView && s.op != Step::kCopy && s.op != Step::kFree && s.op != Step::kCheck && s.dst >= 0) p.view_root[s.dst] = -1;
    if (s.slots.size() > Run::kMaxPointers || s.ints.size() > Run::kMaxInts) raise(PyExc_ValueError, "a kernel has too many arguments");
    return s;
  }

  void mutated(int32_t slot) {
    int32_t root = p.view_root[slot];
    if (root >= 0 && std::find(p.mutates.begin(), p.mutates.end(), root) == p.mutates.end()) p.mutates.push_back(root);
  }

  void count_const_bytes(const Desc& d) {
    int64_t n = (int64_t)d.meta.itemsize();
    for (int32_t r : d.sizes) n *= p.regs[r].op == Reg::kConst ? p.regs[r].value : 1;
    p.const_bytes += n;
  }

  std::unique_ptr<AtenStep> aten(const Items& t) {
    auto a = std::make_unique<AtenStep>();
    a->name = as_text(t[1], "an operator's name");
    std::string overload = as_text(t[2], "an operator's overload");
    a->op = c10::Dispatcher::singleton().findSchema({a->name, overload});
    if (!a->op) raise(PyExc_ValueError, "torch has no operator " + a->name + (overload.empty() ? "" : "." + overload));
    const auto& schema = a->op->schema();
    Items args(t[3], "an operator's arguments");
    if ((size_t)args.size != schema.arguments().size())
      raise(PyExc_ValueError, a->name + " takes " + std::to_string(schema.arguments().size()) + " arguments, the plan gives " + std::to_string(args.size));
    auto check_slot = [this](int64_t i) { if (i < 0 || i >= p.n_slots) raise(PyExc_ValueError, "an operator's argument: slot out of range"); };
    auto check_reg = [this](int64_t i) { if (i < 0 || (size_t)i >= p.regs.size()) raise(PyExc_ValueError, "an operator's argument: register out of range"); };
    for (Py_ssize_t i = 0; i < args.size; ++i) a->args.push_back(parse_aten_arg(args[i], schema.arguments()[i], check_slot, check_reg));
    const auto& returns = schema.returns();
    a->returns_list = returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType;
    Items outs(t[4], "an operator's result slots");
    if (!a->returns_list && (size_t)outs.size > returns.size()) raise(PyExc_ValueError, a->name + " has " + std::to_string(returns.size()) + " results, the plan wants " + std::to_string(outs.size));
    for (Py_ssize_t i = 0; i < outs.size; ++i) {
      a->outs.push_back(outs[i] == Py_None ? -1 : target(outs[i], "an operator's result"));
      if (a->outs.back() >= 0) p.view_root[a->outs.back()] = -1;
    }
    if (t.size > 5 && t[5] != Py_None) {
      Items expect(t[5], "an operator's expected layouts");
      for (Py_ssize_t i = 0; i < expect.size; ++i) {
        AtenStep::Expect e;
        if (expect[i] != Py_None) {
          Items pair(expect[i], "an expected layout");
          e.given = true;
          e.sizes = regs(pair[0], "expected sizes");
          e.strides = regs(pair[1], "expected strides");
          if (e.sizes.size() != e.strides.size()) raise(PyExc_ValueError, "expected sizes and strides differ in length");
        }
        a->expect.push_back(std::move(e));
      }
    }
    return a;
  }
};

std::shared_ptr<const Program> parse(PyObject* plan) {
  auto program = std::make_shared<Program>();
  Program& p = *program;
  auto get = [&](const char* name) { return Ref::steal(checked(PyObject_GetAttrString(plan, name))); };
  p.n_inputs = (int32_t)as_int(get("n_inputs").get(), "n_inputs");
  p.n_ints = (int32_t)as_int(get("n_ints").get(), "n_ints");
  p.n_slots = (int32_t)as_int(get("n_slots").get(), "n_slots");
  if (p.n_inputs < 0 || p.n_ints < 0 || p.n_slots < p.n_inputs) raise(PyExc_ValueError, "a plan needs n_slots >= n_inputs >= 0 and n_ints >= 0");
  p.regs = parse_regs(get("regs").get(), p.n_inputs, p.n_ints);
  for (size_t i = 0; i < p.regs.size(); ++i) {
    p.reg_values.push_back(p.regs[i].value);
    if (p.regs[i].op != Reg::kConst) p.computed.push_back((int32_t)i);
  }
  p.view_root.assign(p.n_slots, -1);
  for (int i = 0; i < p.n_inputs; ++i) p.view_root[i] = i;
  Parser parser{p};
  Ref steps = get("steps");
  Items list(steps.get(), "steps");
  for (Py_ssize_t i = 0; i < list.size; ++i) p.steps.push_back(parser.step(list[i]));
  p.outputs = parser.slots(get("outputs").get(), "outputs");
  Ref mutates = get("mutates");
  Items changed(mutates.get(), "mutates");
  for (Py_ssize_t i = 0; i < changed.size; ++i) {
    int32_t s = parser.slot(changed[i], "mutates");
    if (s >= p.n_inputs) raise(PyExc_ValueError, "mutates names inputs only");
    parser.mutated(s);
  }
  return program;
}

// ---- the Python type --------------------------------------------------------------------------------------------------------

PyObject* make(std::shared_ptr<const Program> program, PyObject* data, PyObject* bound) {
  auto* self = PyObject_GC_New(PlanObject, &PlanType);
  if (!self) return nullptr;
  self->vectorcall = plan_call;
  self->n_free = program->n_inputs;
  new (&self->program) std::shared_ptr<const Program>(std::move(program));
  self->data = Py_NewRef(data);
  self->bound = Py_XNewRef(bound);
  if (bound)
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(bound); ++i) self->n_free -= PyTuple_GET_ITEM(bound, i) != Py_None;
  PyObject_GC_Track(reinterpret_cast<PyObject*>(self));
  return reinterpret_cast<PyObject*>(self);
}

void plan_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<PlanObject*>(object);
  PyObject_GC_UnTrack(object);
  Py_CLEAR(self->data);
  Py_CLEAR(self->bound);
  self->program.~shared_ptr();
  PyObject_GC_Del(object);
}

int plan_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<PlanObject*>(object);
  Py_VISIT(self->data);
  Py_VISIT(self->bound);
  return 0;
}

int plan_clear(PyObject* object) {
  // The bound tensors stay: a call after this has to find as many inputs as n_free says.
  Py_CLEAR(reinterpret_cast<PlanObject*>(object)->data);
  return 0;
}

PyObject* plan_repr(PyObject* object) {
  auto* self = reinterpret_cast<PlanObject*>(object);
  return PyUnicode_FromFormat("<jit plan: %d inputs (%d bound), %d ints, %zu steps, %zu outputs>", self->program->n_inputs, self->program->n_inputs - self->n_free, self->program->n_ints,
                              self->program->steps.size(), self->program->outputs.size());
}

// A tuple of bound inputs from the present one and {index: tensor}.
PyObject* bound_tuple(PlanObject* self, Py_ssize_t n, const int32_t* inputs, PyObject* const* tensors) {
  Py_ssize_t total = self->program->n_inputs;
  Ref out = Ref::steal(checked(PyTuple_New(total)));
  for (Py_ssize_t i = 0; i < total; ++i) PyTuple_SET_ITEM(out.get(), i, Py_NewRef(self->bound ? PyTuple_GET_ITEM(self->bound, i) : Py_None));
  for (Py_ssize_t k = 0; k < n; ++k) {
    if (inputs[k] < 0 || inputs[k] >= total) raise(PyExc_ValueError, "bind: the plan has no input " + std::to_string(inputs[k]));
    if (!THPVariable_Check(tensors[k])) raise(PyExc_TypeError, std::string("bind: expected a tensor, got ") + Py_TYPE(tensors[k])->tp_name);
    PyObject* old = PyTuple_GET_ITEM(out.get(), inputs[k]);
    PyTuple_SET_ITEM(out.get(), inputs[k], Py_NewRef(tensors[k]));
    Py_DECREF(old);
  }
  return out.release();
}

struct Binding {
  std::vector<int32_t> inputs;
  std::vector<PyObject*> tensors;
  explicit Binding(PyObject* dict) {
    if (!PyDict_Check(dict)) raise(PyExc_TypeError, "bind takes a dict of input index to tensor");
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(dict, &at, &key, &value)) {
      inputs.push_back((int32_t)as_int(key, "an input index"));
      tensors.push_back(value);
    }
  }
};

PyObject* py_bind(PyObject*, PyObject* args) {
  PyObject *plan, *dict;
  if (!PyArg_ParseTuple(args, "O!O:bind", &PlanType, &plan, &dict)) return nullptr;
  auto* self = reinterpret_cast<PlanObject*>(plan);
  try {
    Binding b(dict);
    Ref bound = Ref::steal(bound_tuple(self, (Py_ssize_t)b.inputs.size(), b.inputs.data(), b.tensors.data()));
    return make(self->program, self->data ? self->data : Py_None, bound.get());
  } catch (const PythonError&) {
    return nullptr;
  }
}

PyObject* plan_rebind_method(PyObject* plan, PyObject* dict) {
  try {
    Binding b(dict);
    return plan_rebind(plan, (Py_ssize_t)b.inputs.size(), b.inputs.data(), b.tensors.data()) ? Py_NewRef(Py_None) : nullptr;
  } catch (const PythonError&) {
    return nullptr;
  }
}

PyObject* py_load_plan(PyObject*, PyObject* data) {
  HANDLE_TH_ERRORS
  try {
    return make(parse(data), data, nullptr);
  } catch (const PythonError&) {
    return nullptr;
  }
  END_HANDLE_TH_ERRORS
}

PyObject* plan_get_data(PyObject* o, void*) {
  PyObject* d = reinterpret_cast<PlanObject*>(o)->data;
  return Py_NewRef(d ? d : Py_None);
}

PyObject* plan_get_bound(PyObject* o, void*) {
  auto* self = reinterpret_cast<PlanObject*>(o);
  Ref out = Ref::steal(PyDict_New());
  if (!out || !self->bound) return out.release();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->bound); ++i) {
    PyObject* t = PyTuple_GET_ITEM(self->bound, i);
    if (t == Py_None) continue;
    Ref key = Ref::steal(PyLong_FromSsize_t(i));
    if (!key || PyDict_SetItem(out.get(), key.get(), t) != 0) return nullptr;
  }
  return out.release();
}

PyMethodDef plan_methods[] = {
    {"rebind", plan_rebind_method, METH_O, "rebind({input index: tensor}): replace bound inputs. Only inputs that are bound already."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef plan_getset[] = {
    {"data", plan_get_data, nullptr, "The Plan that this was loaded from.", nullptr},
    {"bound", plan_get_bound, nullptr, "The bound inputs, {input index: tensor}.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject PlanType = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyMethodDef methods[] = {
    {"load_plan", py_load_plan, METH_O, "load_plan(Plan) -> callable. ValueError or TypeError says what is wrong with the data."},
    {"bind", py_bind, METH_VARARGS, "bind(plan, {input index: tensor}) -> a plan with those inputs given; it takes the others in order."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool plan_check(PyObject* object) { return Py_TYPE(object) == &PlanType; }

bool plan_rebind(PyObject* plan, Py_ssize_t n, const int32_t* inputs, PyObject* const* tensors) {
  auto* self = reinterpret_cast<PlanObject*>(plan);
  try {
    for (Py_ssize_t i = 0; i < n; ++i)
      if (!self->bound || inputs[i] < 0 || inputs[i] >= PyTuple_GET_SIZE(self->bound) || PyTuple_GET_ITEM(self->bound, inputs[i]) == Py_None)
        raise(PyExc_ValueError, "rebind: input " + std::to_string(inputs[i]) + " is not bound");
    PyObject* fresh = bound_tuple(self, n, inputs, tensors);
    PyObject* old = self->bound;
    self->bound = fresh;
    Py_XDECREF(old);
    return true;
  } catch (const PythonError&) {
    return false;
  }
}

void plan_unbind(PyObject* plan) {
  auto* self = reinterpret_cast<PlanObject*>(plan);
  self->n_free = self->program->n_inputs;
  Py_CLEAR(self->bound);
}

bool init_plan(PyObject* module) {
  PlanType.tp_name = "jit.runtime.native.Plan";
  PlanType.tp_doc = "A loaded plan: plan(*tensors, *ints) -> tuple of tensors. Inputs that are bound are left out of the arguments.";
  PlanType.tp_basicsize = sizeof(PlanObject);
  PlanType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  PlanType.tp_vectorcall_offset = offsetof(PlanObject, vectorcall);
  PlanType.tp_call = PyVectorcall_Call;
  PlanType.tp_dealloc = plan_dealloc;
  PlanType.tp_traverse = plan_traverse;
  PlanType.tp_clear = plan_clear;
  PlanType.tp_repr = plan_repr;
  PlanType.tp_methods = plan_methods;
  PlanType.tp_getset = plan_getset;
  if (PyType_Ready(&PlanType) != 0) return false;
  return PyModule_AddObjectRef(module, "Plan", (PyObject*)&PlanType) == 0 && PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace jit
