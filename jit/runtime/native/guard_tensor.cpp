#include "guard_tensor.h"

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <climits>
#include <vector>

// Declared here because ATen/autocast_mode.h pulls in every operator.
namespace at::autocast {
TORCH_API bool is_autocast_enabled(at::DeviceType device_type);
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType device_type);
TORCH_API bool is_autocast_cache_enabled();
}  // namespace at::autocast

namespace jit {

struct TensorSpec {
  PyTypeObject* cls = nullptr;
  Ref cls_ref;
  uint64_t keys = 0;  // 0: any
  caffe2::TypeMeta dtype;
  std::optional<c10::Device> device;
  int8_t requires_grad = -1;  // -1: any
  bool any_rank = false, all_sizes = true, all_strides = true, any_strides = false;
  int64_t align = 0;
  std::vector<int64_t> sizes, strides;  // kAny: any
};

constexpr int64_t kAny = INT64_MIN;

bool is_tensor(PyObject* object) {
  return THPVariable_CheckTypeExact(Py_TYPE(object)) ||
         PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(THPVariableClass));
}

static bool parse_dims(PyObject* o, std::vector<int64_t>& out, bool& all) {
  if (o == Py_None) return false;
  Items items(o, "TensorSpec sizes or strides");
  all = true;
  for (Py_ssize_t i = 0; i < items.size; ++i) {
    if (items[i] == Py_None) {
      all = false;
      out.push_back(kAny);
    } else {
      out.push_back(as_int(items[i], "TensorSpec sizes or strides"));
    }
  }
  return true;
}

static std::shared_ptr<const TensorSpec> parse_tensor_spec(PyObject* o) {
  auto spec = std::make_shared<TensorSpec>();
  auto get = [&](const char* name) { return Ref::steal(checked(PyObject_GetAttrString(o, name))); };
  spec->cls_ref = get("cls");
  if (!PyType_Check(spec->cls_ref.get()) || !PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(spec->cls_ref.get()),
                                                              reinterpret_cast<PyTypeObject*>(THPVariableClass)))
    raise(PyExc_TypeError, "TensorSpec.cls has to be torch.Tensor or a subclass");
  spec->cls = reinterpret_cast<PyTypeObject*>(spec->cls_ref.get());
  Ref dtype = get("dtype"), device = get("device"), sizes = get("sizes"), strides = get("strides"),
      grad = get("requires_grad"), keys = get("keys"), align = get("align");
  if (!THPDtype_Check(dtype.get())) raise(PyExc_TypeError, "TensorSpec.dtype has to be a torch.dtype");
  spec->dtype = c10::scalarTypeToTypeMeta(reinterpret_cast<THPDtype*>(dtype.get())->scalar_type);
  if (THPDevice_Check(device.get())) {
    spec->device = reinterpret_cast<THPDevice*>(device.get())->device;
  } else if (device.get() != Py_None) {
    spec->device = c10::Device(as_text(device.get(), "TensorSpec.device"));
  }
  if (grad.get() != Py_None) spec->requires_grad = (int8_t)PyObject_IsTrue(grad.get());
  if (keys.get() != Py_None) {
    spec->keys = PyLong_AsUnsignedLongLong(keys.get());
    if (PyErr_Occurred()) throw PythonError();
  }
  spec->align = align.get() == Py_None ? 0 : as_int(align.get(), "TensorSpec.align");
  spec->any_rank = !parse_dims(sizes.get(), spec->sizes, spec->all_sizes);
  spec->any_strides = !parse_dims(strides.get(), spec->strides, spec->all_strides);
  if (!spec->any_rank && !spec->any_strides && spec->sizes.size() != spec->strides.size())
    raise(PyExc_ValueError, "TensorSpec: sizes and strides differ in length");
  return spec;
}

std::string TensorSpecs::key(const TensorSpec& s) {
  std::string text;
  auto add = [&](int64_t v) { text.append(reinterpret_cast<const char*>(&v), sizeof(v)); };
  add((int64_t)reinterpret_cast<intptr_t>(s.cls));
  add((int64_t)s.keys);
  add((int64_t)c10::typeMetaToScalarType(s.dtype));
  add(s.device ? (int64_t)s.device->type() * 1024 + s.device->index() : INT64_MIN);
  add(s.requires_grad);
  add(s.align);
  add(s.any_rank ? -1 : (int64_t)s.sizes.size());
  add(s.any_strides ? -1 : (int64_t)s.strides.size());
  for (int64_t v : s.sizes) add(v);
  for (int64_t v : s.strides) add(v);
  return text;
}

std::shared_ptr<const TensorSpec> TensorSpecs::parse(PyObject* object) {
  std::shared_ptr<const TensorSpec> spec = parse_tensor_spec(object);
  return known_.try_emplace(key(*spec), spec).first->second;
}

static inline bool same_dims(c10::IntArrayRef have, const std::vector<int64_t>& want, bool all) {
  if (have.size() != want.size()) return false;
  if (all) {
    // Ranks are small: a loop is faster than a call.
    bool same = true;
    for (size_t i = 0; i < want.size(); ++i) same &= have[i] == want[i];
    return same;
  }
  for (size_t i = 0; i < want.size(); ++i)
    if (want[i] != kAny && want[i] != have[i]) return false;
  return true;
}

static bool dense(const c10::TensorImpl* impl) {
  return impl->key_set().has_backend(c10::BackendComponent::MetaBit) || impl->layout() == c10::kStrided;
}

// What impl->requires_grad() answers, without its calls where the tensor is no view. A view asks its base as well: one
// that was made under no_grad requires grad without a function of its own.
static inline bool requires_grad(const torch::autograd::AutogradMeta* meta) {
  return meta && (meta->requires_grad_ || meta->grad_fn_ || (meta->is_view_ && meta->requires_grad()));
}

static inline bool matches(const TensorSpec& s, const c10::TensorImpl* impl) {
  if (s.keys ? impl->key_set().raw_repr() != s.keys : !dense(impl)) return false;
  if (impl->dtype() != s.dtype) return false;
  if (s.device && impl->device() != *s.device) return false;
  auto* meta = static_cast<torch::autograd::AutogradMeta*>(impl->autograd_meta());
  if (s.requires_grad >= 0 && requires_grad(meta) != (bool)s.requires_grad) return false;
  // A tangent of forward-mode differentiation, which graphs do not have.
  if (meta && meta->fw_grad_ && !meta->fw_grad_->empty()) return false;
  if (!s.any_rank && !same_dims(impl->sizes(), s.sizes, s.all_sizes)) return false;
  if (!s.any_strides && !same_dims(impl->strides(), s.strides, s.all_strides)) return false;
  if (s.align && reinterpret_cast<uintptr_t>(impl->data()) % (uintptr_t)s.align != 0) return false;
  return true;
}

static inline c10::TensorImpl* impl_of(PyObject* tensor) { return THPVariable_Unpack(tensor).unsafeGetTensorImpl(); }

bool tensor_matches(const TensorSpec& spec, PyObject* object) {
  return Py_TYPE(object) == spec.cls && matches(spec, impl_of(object));
}

TensorWatch watch_tensor(PyObject* tensor, const TensorSpec* spec) {
  c10::TensorImpl* impl = impl_of(tensor);
  return {tensor, impl, spec, impl->autograd_meta()};
}

// Asks for the memory that looking at a tensor needs: six cache lines, which in a model are seldom in the nearest
// cache.
static inline void fetch(const TensorWatch& w) {
  auto* impl = static_cast<const char*>(w.identity);
  auto* autograd =
      static_cast<const torch::autograd::AutogradMeta*>(static_cast<const c10::AutogradMetaInterface*>(w.autograd));
  __builtin_prefetch(w.tensor);
  for (size_t at = 0; at < sizeof(c10::TensorImpl); at += 64) __builtin_prefetch(impl + at);
  if (!autograd) return;
  __builtin_prefetch(&autograd->requires_grad_);
  __builtin_prefetch(&autograd->grad_fn_);
}

bool tensors_unchanged(const TensorWatch* watches, size_t n) {
  constexpr size_t kAhead = 6;
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) fetch(watches[i + kAhead]);
    const TensorWatch& w = watches[i];
    if (Py_TYPE(w.tensor) != w.spec->cls) return false;
    c10::TensorImpl* impl = impl_of(w.tensor);
    if (impl != w.identity || !matches(*w.spec, impl)) return false;
  }
  return true;
}

bool tensor_layout(PyObject* object, const int64_t** sizes, const int64_t** strides, int64_t* rank) {
  if (!is_tensor(object)) return false;
  c10::TensorImpl* impl = THPVariable_Unpack(object).unsafeGetTensorImpl();
  if (!dense(impl)) return false;
  *sizes = impl->sizes().data();
  *strides = impl->strides().data();
  *rank = impl->dim();
  return true;
}

bool tensor_extent(PyObject* object, uintptr_t* begin, uintptr_t* end) {
  if (!is_tensor(object)) return false;
  c10::TensorImpl* impl = THPVariable_Unpack(object).unsafeGetTensorImpl();
  if (!dense(impl) || !impl->has_storage()) return false;
  *begin = *end = 0;
  // A meta tensor's storage has no address.
  if (impl->numel() == 0 || impl->is_meta()) return true;
  *begin = *end = reinterpret_cast<uintptr_t>(impl->data());
  if (!*begin) return true;
  int64_t last = 0;
  for (int64_t d = 0; d < impl->dim(); ++d) last += (impl->sizes()[d] - 1) * impl->strides()[d];
  *end += (uintptr_t)((last + 1) * (int64_t)impl->itemsize());
  return true;
}

bool tensors_overlap(PyObject* a, PyObject* b) {
  uintptr_t begin, end, other_begin, other_end;
  if (!tensor_extent(a, &begin, &end) || !tensor_extent(b, &other_begin, &other_end)) return true;
  return begin < other_end && other_begin < end;
}

int64_t tensor_distance(PyObject* a, PyObject* b) {
  if (!is_tensor(a) || !is_tensor(b)) return INT64_MIN;
  c10::TensorImpl *x = THPVariable_Unpack(a).unsafeGetTensorImpl(), *y = THPVariable_Unpack(b).unsafeGetTensorImpl();
  if (!x->has_storage() || !y->has_storage() ||
      x->unsafe_storage().unsafeGetStorageImpl() != y->unsafe_storage().unsafeGetStorageImpl())
    return INT64_MIN;
  return y->storage_offset() * (int64_t)y->itemsize() - x->storage_offset() * (int64_t)x->itemsize();
}

bool tensor_has_no_memory(PyObject* object) {
  if (!is_tensor(object)) return false;
  c10::TensorImpl* t = THPVariable_Unpack(object).unsafeGetTensorImpl();
  return t->has_storage() && t->unsafe_storage().nbytes() == 0;
}

bool tensor_has_room(PyObject* object, int64_t before, int64_t after) {
  if (!is_tensor(object)) return false;
  c10::TensorImpl* t = THPVariable_Unpack(object).unsafeGetTensorImpl();
  if (!t->has_storage()) return false;
  int64_t at = t->storage_offset() * (int64_t)t->itemsize();
  return at >= before && (int64_t)t->unsafe_storage().nbytes() - at >= after;
}

bool tensor_writable(PyObject* object) {
  if (!is_tensor(object)) return false;
  auto leaf = [](const at::Tensor& t) { return t.requires_grad() && t.is_leaf(); };
  const at::Tensor& t = THPVariable_Unpack(object);
  if (leaf(t)) return false;
  auto* view = torch::autograd::impl::get_view_autograd_meta(t);
  return !view || !view->has_bw_view() ||
         (view->get_creation_meta() == torch::autograd::CreationMeta::DEFAULT &&
          !leaf(view->get_backward_view().base_));
}

PyObject* tensor_grad(PyObject* tensor) {
  if (!is_tensor(tensor)) return nullptr;
  const at::Tensor& grad = THPVariable_Unpack(tensor).grad();
  return grad.defined() ? THPVariable_Wrap(grad) : Py_NewRef(Py_None);
}

// ---- global state
// -----------------------------------------------------------------------------------------------------------

struct GlobalState {
  // The thread's dispatch keys tell inference mode, autocast, dispatch modes and functorch transforms.
  uint64_t included = 0, excluded = 0;
  int64_t grad_mode = 0, cpu_autocast = -1, cuda_autocast = -1, default_dtype = 0, deterministic = 0,
          function_modes = 0, function_disabled = 0;
  // What few captures depend on; negative: not this one.
  int64_t attention = -2, switches = -2, autocast = -2;
};

// Which torch function modes are on, and for which device those of a default device are: 0 for none.
static int64_t mode_stack() {
  uint64_t found = 0;
  for (int64_t i = 0, n = at::impl::PythonTorchFunctionTLS::stack_len(); i < n; ++i) {
    PyObject* mode = at::impl::PythonTorchFunctionTLS::get_stack_at(i)->ptr(getPyInterpreter());
    found = found * 1000003 + reinterpret_cast<uintptr_t>(Py_TYPE(mode)) / sizeof(void*) + 1;
    Ref device = Ref::steal(PyObject_GetAttrString(mode, "device"));
    if (!device) PyErr_Clear();
    if (device && THPDevice_Check(device.get())) {
      auto d = reinterpret_cast<THPDevice*>(device.get())->device;
      found = found * 1000003 + (uint64_t)d.type() * 1024 + (uint64_t)(d.index() + 2);
    }
  }
  return (int64_t)(found >> 1);
}

static int64_t determinism() {
  auto& context = at::globalContext();
  return context.deterministicAlgorithms() | (context.deterministicAlgorithmsWarnOnly() << 1) |
         (context.deterministicFillUninitializedMemory() << 2);
}

static GlobalState current_state() {
  GlobalState s;
  auto keys = c10::impl::tls_local_dispatch_key_set();
  s.included = keys.included_.raw_repr();
  s.excluded = keys.excluded_.raw_repr();
  s.grad_mode = c10::GradMode::is_enabled();
  if (at::autocast::is_autocast_enabled(at::kCPU)) s.cpu_autocast = (int64_t)at::autocast::get_autocast_dtype(at::kCPU);
  if (at::autocast::is_autocast_enabled(at::kCUDA))
    s.cuda_autocast = (int64_t)at::autocast::get_autocast_dtype(at::kCUDA);
  s.default_dtype = (int64_t)c10::typeMetaToScalarType(c10::get_default_dtype());
  s.deterministic = determinism();
  s.function_modes = mode_stack();
  s.function_disabled = (int64_t)at::impl::PythonTorchFunctionTLS::get_disabled_state();
  return s;
}

static int64_t attention_kernels() {
  auto& context = at::globalContext();
  int64_t found = context.userEnabledFlashSDP() | (context.userEnabledMemEfficientSDP() << 1) |
                  (context.userEnabledMathSDP() << 2) | (context.userEnabledCuDNNSDP() << 3) |
                  (context.userEnabledOverrideableSDP() << 4) | (context.allowFP16BF16ReductionMathSDP() << 5);
  for (at::SDPBackend backend : context.sDPPriorityOrder()) found = found << 4 | ((int64_t)backend & 15);
  return found;
}

static int64_t switches() {
  auto& context = at::globalContext();
  return torch::autograd::AnomalyMode::is_enabled() | (context.userEnabledCuDNN() << 1) |
         (context.benchmarkCuDNN() << 2);
}

// What autocast would do where it is off, too.
static int64_t autocast_settings() {
  return (int64_t)at::autocast::get_autocast_dtype(at::kCPU) |
         ((int64_t)at::autocast::get_autocast_dtype(at::kCUDA) << 8) |
         ((int64_t)at::autocast::is_autocast_cache_enabled() << 16);
}

// Whether the dtype of autocast is that of a state with the same dispatch keys, which tell whether autocast is on.
static bool autocast_agrees(int64_t wanted, at::DeviceType device) {
  return wanted < 0 || wanted == (int64_t)at::autocast::get_autocast_dtype(device);
}

bool global_state_matches(const GlobalState& s) {
  auto keys = c10::impl::tls_local_dispatch_key_set();
  return keys.included_.raw_repr() == s.included && keys.excluded_.raw_repr() == s.excluded &&
         c10::GradMode::is_enabled() == (bool)s.grad_mode && autocast_agrees(s.cpu_autocast, at::kCPU) &&
         autocast_agrees(s.cuda_autocast, at::kCUDA) &&
         (int64_t)c10::typeMetaToScalarType(c10::get_default_dtype()) == s.default_dtype &&
         determinism() == s.deterministic && mode_stack() == s.function_modes &&
         (int64_t)at::impl::PythonTorchFunctionTLS::get_disabled_state() == s.function_disabled &&
         (s.attention < 0 || s.attention == attention_kernels()) && (s.switches < 0 || s.switches == switches()) &&
         (s.autocast < 0 || s.autocast == autocast_settings());
}

std::shared_ptr<const GlobalState> parse_global_state(PyObject* o) {
  Items t(o, "a global state snapshot");
  auto s = std::make_shared<GlobalState>();
  s->included = PyLong_AsUnsignedLongLong(t[0]);
  s->excluded = PyLong_AsUnsignedLongLong(t[1]);
  if (PyErr_Occurred()) throw PythonError();
  Py_ssize_t next = 2;
  for (int64_t* field : {&s->grad_mode, &s->cpu_autocast, &s->cuda_autocast, &s->default_dtype, &s->deterministic,
                         &s->function_modes, &s->function_disabled, &s->attention, &s->switches, &s->autocast})
    *field = as_int(t[next++], "a global state snapshot");
  return s;
}

static PyObject* py_snapshot(PyObject*, PyObject*) {
  GlobalState s = current_state();
  return Py_BuildValue("(KKLLLLLLLLLL)", (unsigned long long)s.included, (unsigned long long)s.excluded,
                       (long long)s.grad_mode, (long long)s.cpu_autocast, (long long)s.cuda_autocast,
                       (long long)s.default_dtype, (long long)s.deterministic, (long long)s.function_modes,
                       (long long)s.function_disabled, (long long)attention_kernels(), (long long)switches(),
                       (long long)autocast_settings());
}

static PyMethodDef methods[] = {
    {"global_state_snapshot", Entry<py_snapshot>::call, METH_NOARGS,
     "(included keys, excluded keys, grad mode, autocast dtype of cpu and cuda or -1, default dtype, deterministic "
     "flags, function modes, torch function state,\n"
     "attention switches, anomaly mode and cuDNN switches, settings of autocast)"},
    {nullptr, nullptr, 0, nullptr},
};

bool init_guard_tensor(PyObject* module) { return PyModule_AddFunctions(module, methods) == 0; }

}  // namespace jit
