// Only the few functions of cuBLASLt used here are declared; the library is the one that PyTorch has loaded.
#include "products.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>

#include "cuda.h"
#include "plan_memory.h"

namespace jit {
namespace {

using Handle = void*;
using Status = int;
enum Transposition : int32_t { kPlain = 0, kTransposed = 1 };
// Numbers of cuBLASLt's and CUDA's enumerations.
constexpr int kCompute32F = 68, kCompute32FFastTF32 = 77, kReal32F = 0, kReal16F = 2, kReal16BF = 14;
constexpr int kDescTransA = 3, kDescTransB = 4, kDescEpilogue = 7, kDescBias = 8;
constexpr int kLayoutBatches = 5, kLayoutBatchStride = 6;
constexpr int kPreferenceWorkspace = 1, kPreferenceAlignmentA = 5;  // then of B, C and D
constexpr uint32_t kEpilogueBias = 4;
constexpr uint64_t kWorkspace = 32 << 20;
constexpr size_t kMostKnown = 16;
constexpr int kMaxDevices = 64;

struct Heuristic {
  uint64_t algorithm[8];
  size_t workspace;
  Status state;
  float waves;
  int reserved[4];
};

struct Library {
  Status (*create)(Handle*);
  Status (*desc_create)(void**, int, int);
  Status (*desc_set)(void*, int, const void*, size_t);
  Status (*desc_destroy)(void*);
  Status (*layout_create)(void**, int, uint64_t, uint64_t, int64_t);
  Status (*layout_set)(void*, int, const void*, size_t);
  Status (*layout_destroy)(void*);
  Status (*preference_create)(void**);
  Status (*preference_set)(void*, int, const void*, size_t);
  Status (*preference_destroy)(void*);
  Status (*heuristic)(Handle, void*, void*, void*, void*, void*, void*, int, Heuristic*, int*);
  Status (*matmul)(Handle, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*,
                   void*, void*, const uint64_t*, void*, size_t, void*);
  bool usable = true;
};

const Library& library() {
  static const Library* found = [] {
    auto* l = new Library();
    void* file = nullptr;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"})
      if (!file) file = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
    auto find = [&](auto& f, const char* name) {
      f = file ? reinterpret_cast<std::decay_t<decltype(f)>>(dlsym(file, name)) : nullptr;
      l->usable &= f != nullptr;
    };
    find(l->create, "cublasLtCreate");
    find(l->desc_create, "cublasLtMatmulDescCreate");
    find(l->desc_set, "cublasLtMatmulDescSetAttribute");
    find(l->desc_destroy, "cublasLtMatmulDescDestroy");
    find(l->layout_create, "cublasLtMatrixLayoutCreate");
    find(l->layout_set, "cublasLtMatrixLayoutSetAttribute");
    find(l->layout_destroy, "cublasLtMatrixLayoutDestroy");
    find(l->preference_create, "cublasLtMatmulPreferenceCreate");
    find(l->preference_set, "cublasLtMatmulPreferenceSetAttribute");
    find(l->preference_destroy, "cublasLtMatmulPreferenceDestroy");
    find(l->heuristic, "cublasLtMatmulAlgoGetHeuristic");
    find(l->matmul, "cublasLtMatmul");
    return l;
  }();
  return *found;
}

// A handle for a device, whose context is current; null where there is none.
Handle handle_of(int device) {
  static std::mutex mutex;
  static std::array<Handle, kMaxDevices> handles{};
  if (device < 0 || device >= kMaxDevices) return nullptr;
  std::lock_guard<std::mutex> lock(mutex);
  if (!handles[device] && library().create(&handles[device]) != 0) handles[device] = nullptr;
  return handles[device];
}

uint32_t alignment_of(const void* p) {
  auto at = reinterpret_cast<uintptr_t>(p);
  uint32_t a = 256;
  while (at % a) a /= 2;
  return a;
}

// One operand as the library sees it, by columns.
struct Operand {
  Transposition turned = kPlain;
  int64_t leading = 0, batch_stride = 0;
};

// A matrix by rows is its transposition by columns.
bool operand(const Matrix& m, Operand& o) {
  int d = m.dims - 2;
  int64_t rows = m.sizes[d], columns = m.sizes[d + 1], down = m.strides[d], right = m.strides[d + 1];
  o.batch_stride = d ? m.strides[0] : 0;
  if ((right == 1 || columns == 1) && (down >= columns || rows == 1)) {
    o.turned = kPlain;
    o.leading = rows == 1 ? columns : down;
    return right == 1 || columns == 1;
  }
  if ((down == 1 || rows == 1) && (right >= rows || columns == 1)) {
    o.turned = kTransposed;
    o.leading = columns == 1 ? rows : right;
    return true;
  }
  return false;
}

std::atomic<bool> enabled{false};

// What cuBLASLt calls a dtype, and how products of it are computed under PyTorch's switches; `type` is -1 for those
// that are left to PyTorch.
struct Arithmetic {
  int type = -1, compute = kCompute32F;
};

Arithmetic arithmetic(at::ScalarType dtype) {
  at::Context& c = at::globalContext();
  if (c.deterministicAlgorithms()) return {};
  if (dtype == at::kFloat) {
    try {
      return {kReal32F, c.allowTF32CuBLAS() ? kCompute32FFastTF32 : kCompute32F};
    } catch (const c10::Error&) {  // the switches contradict each other, which PyTorch's operator tells the program
      return {};
    }
  }
  auto free = [](auto option) {
    if constexpr (std::is_same_v<decltype(option), bool>) return option;
    else return option == decltype(option)::AllowReducedPrecisionWithSplitK;
  };
  if (c.allowFP16AccumulationCuBLAS() || !free(c.allowFP16ReductionCuBLAS()) || !free(c.allowBF16ReductionCuBLAS()))
    return {};
  if (dtype == at::kHalf) return {kReal16F};
  if (dtype == at::kBFloat16) return {kReal16BF};
  return {};
}

}  // namespace

struct Products::Known {
  std::array<int64_t, 19> key{};
  bool refused = false;
  void *desc = nullptr, *a = nullptr, *b = nullptr, *c = nullptr, *d = nullptr;
  Heuristic how{};

  ~Known() {
    const Library& l = library();
    if (desc) l.desc_destroy(desc);
    for (void* layout : {a, b, c, d})
      if (layout) l.layout_destroy(layout);
  }
};

bool direct_products(bool on) { return enabled.exchange(on); }

Products::Products() = default;
Products::~Products() = default;

bool Products::run(int device, void* stream, const Matrix& a, const Matrix& b, const Matrix* bias, const Matrix& c) {
  const Library& l = library();
  if (!l.usable || device < 0 || !enabled) return false;
  Arithmetic by = arithmetic(a.dtype);
  if (by.type < 0 || b.dtype != a.dtype || c.dtype != a.dtype) return false;
  if (a.dims != c.dims || b.dims != c.dims || c.dims < 2 || c.dims > 3) return false;
  int d = c.dims - 2;
  int64_t m = c.sizes[d], n = c.sizes[d + 1], k = a.sizes[d + 1], batches = d ? c.sizes[0] : 1;
  if (m < 1 || n < 1 || k < 1 || batches < 1 || a.sizes[d] != m || b.sizes[d] != k || b.sizes[d + 1] != n) return false;
  if (d && (a.sizes[0] != batches || b.sizes[0] != batches)) return false;
  Operand left, right, out, added;
  if (!operand(a, left) || !operand(b, right) || !operand(c, out) || out.turned != kPlain) return false;
  bool vector = bias && bias->dims == 1;
  if (bias) {
    if (bias->dtype != a.dtype || d) return false;
    if (vector) {
      if (bias->sizes[0] != n || bias->strides[0] != 1 || alignment_of(bias->data) < 16) return false;
    } else if (bias->dims != 2 || bias->sizes[0] != m || bias->sizes[1] != n || !operand(*bias, added) ||
               added.turned != kPlain) {
      return false;
    }
  }
  const void* addend = bias && !vector ? bias->data : c.data;
  std::array<int64_t, 19> key = {device,
                                 by.type,
                                 by.compute,
                                 m,
                                 n,
                                 k,
                                 batches,
                                 left.turned,
                                 left.leading,
                                 left.batch_stride,
                                 right.turned,
                                 right.leading,
                                 right.batch_stride,
                                 out.leading,
                                 out.batch_stride,
                                 bias ? (vector ? 1 : 2) : 0,
                                 added.leading,
                                 (int64_t)alignment_of(a.data) << 32 | alignment_of(b.data),
                                 (int64_t)alignment_of(c.data) << 32 | alignment_of(addend)};
  Handle handle = handle_of(device);
  if (!handle) return false;
  std::lock_guard<std::mutex> lock(mutex_);  // the address of a bias is part of what is known
  auto at = std::find_if(known_.begin(), known_.end(), [&](auto& known) { return known->key == key; });
  if (at == known_.end()) {
    if (known_.size() == kMostKnown) return false;
    auto made = std::make_unique<Known>();
    Known& w = *made;
    w.key = key;
    bool fine = l.desc_create(&w.desc, by.compute, kReal32F) == 0;
    // By columns the product is that of the transpositions, in the other order: its first operand is b.
    auto layout = [&](void** made, const Operand& o, int64_t rows, int64_t columns) {
      if (o.turned) std::swap(rows, columns);
      fine = fine && l.layout_create(made, by.type, (uint64_t)columns, (uint64_t)rows, o.leading) == 0;
      if (!d || !fine) return;
      int32_t count = (int32_t)batches;
      fine = l.layout_set(*made, kLayoutBatches, &count, sizeof count) == 0 &&
             l.layout_set(*made, kLayoutBatchStride, &o.batch_stride, sizeof o.batch_stride) == 0;
    };
    layout(&w.a, right, k, n);
    layout(&w.b, left, m, k);
    layout(&w.c, bias && !vector ? added : out, m, n);
    layout(&w.d, out, m, n);
    int32_t turn_first = right.turned, turn_second = left.turned;
    fine = fine && l.desc_set(w.desc, kDescTransA, &turn_first, sizeof turn_first) == 0 &&
           l.desc_set(w.desc, kDescTransB, &turn_second, sizeof turn_second) == 0;
    if (fine && vector) {
      uint32_t epilogue = kEpilogueBias;
      fine = l.desc_set(w.desc, kDescEpilogue, &epilogue, sizeof epilogue) == 0 &&
             l.desc_set(w.desc, kDescBias, &bias->data, sizeof(void*)) == 0;
    }
    void* preference = nullptr;
    fine = fine && l.preference_create(&preference) == 0;
    if (fine) {
      fine = l.preference_set(preference, kPreferenceWorkspace, &kWorkspace, sizeof kWorkspace) == 0;
      const void* pointers[] = {b.data, a.data, addend, c.data};
      for (int i = 0; i < 4; ++i) {
        uint32_t bytes = alignment_of(pointers[i]);
        fine = fine && l.preference_set(preference, kPreferenceAlignmentA + i, &bytes, sizeof bytes) == 0;
      }
      int found = 0;
      fine = fine && l.heuristic(handle, w.desc, w.a, w.b, w.c, w.d, preference, 1, &w.how, &found) == 0 &&
             found == 1 && w.how.state == 0;
      l.preference_destroy(preference);
    }
    w.refused = !fine;
    known_.push_back(std::move(made));
    at = known_.end() - 1;
  }
  Known& w = **at;
  if (w.refused) return false;
  if (vector && l.desc_set(w.desc, kDescBias, &bias->data, sizeof(void*)) != 0) return false;
  c10::intrusive_ptr<c10::StorageImpl> workspace;
  if (w.how.workspace) workspace = new_storage(w.how.workspace, c10::Device(c10::kCUDA, (c10::DeviceIndex)device));
  const float one = 1, rest = bias && !vector ? 1 : 0;
  Status status = l.matmul(handle, w.desc, &one, b.data, w.a, a.data, w.b, &rest, addend, w.c, c.data, w.d,
                           w.how.algorithm, workspace ? workspace->mutable_data() : nullptr, w.how.workspace, stream);
  if (status == 0) return true;
  w.refused = true;
  return false;
}

}  // namespace jit
