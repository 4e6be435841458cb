// Fills in CUDA graphs. A fill is a node of its own kind, at which the device rests for some 4 us (H200, driver 580);
// a kernel that does the same takes 1 us.
#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <type_traits>
#include <vector>

#include "cuda.h"

namespace jit {

namespace {

constexpr int kFillNode = 2;                   // CU_GRAPH_NODE_TYPE_MEMSET
constexpr size_t kLargest = size_t{16} << 20;  // bytes; beyond, the fill's own time is what counts
constexpr unsigned kThreads = 256, kMostBlocks = 512;

// CUDA_MEMSET_NODE_PARAMS_v1
struct Fill {
  uint64_t to;
  size_t pitch;
  unsigned value, element;
  size_t width, height;
};

// CUDA_KERNEL_NODE_PARAMS_v1
struct Launch {
  void* function;
  unsigned grid[3], block[3], shared;
  void **arguments, **extra;
};

const char kText[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry jit_fill(.param .u64 to, .param .u64 words, .param .u32 value)
{
  .reg .pred %p<1>;
  .reg .b32 %r<5>;
  .reg .b64 %d<6>;
  ld.param.u64 %d0, [to];
  ld.param.u64 %d1, [words];
  ld.param.u32 %r0, [value];
  cvta.to.global.u64 %d0, %d0;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %nctaid.x;
  mad.lo.u32 %r3, %r1, %r2, %r3;
  mul.lo.u32 %r4, %r4, %r2;
  cvt.u64.u32 %d2, %r3;
  cvt.u64.u32 %d3, %r4;
more:
  setp.ge.u64 %p0, %d2, %d1;
  @%p0 bra done;
  shl.b64 %d4, %d2, 2;
  add.u64 %d4, %d0, %d4;
  st.global.u32 [%d4], %r0;
  add.u64 %d2, %d2, %d3;
  bra more;
done:
  ret;
}
)";

struct Functions {
  int (*nodes)(void*, void**, size_t*);
  int (*type)(void*, int*);
  int (*fill)(void*, Fill*);
  int (*before)(void*, void**, size_t*);
  int (*after)(void*, void**, size_t*);
  int (*add_kernel)(void**, void*, void* const*, size_t, const Launch*);
  int (*add_edges)(void*, void* const*, void* const*, size_t);
  int (*destroy_node)(void*);
  int (*context)(void**);
  int (*load)(void**, const void*);
  int (*function)(void**, void*, const char*);
  bool complete = true;
};

const Functions& functions() {
  static const Functions found = [] {
    Functions f;
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    auto find = [&](auto& function, const char* name) {
      function = library ? reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name)) : nullptr;
      f.complete &= function != nullptr;
    };
    find(f.nodes, "cuGraphGetNodes");
    find(f.type, "cuGraphNodeGetType");
    find(f.fill, "cuGraphMemsetNodeGetParams");
    find(f.before, "cuGraphNodeGetDependencies");
    find(f.after, "cuGraphNodeGetDependentNodes");
    find(f.add_kernel, "cuGraphAddKernelNode");
    find(f.add_edges, "cuGraphAddDependencies");
    find(f.destroy_node, "cuGraphDestroyNode");
    find(f.context, "cuCtxGetCurrent");
    find(f.load, "cuModuleLoadData");
    find(f.function, "cuModuleGetFunction");
    return f;
  }();
  return found;
}

// The kernel in the current context; null where the driver does not take its text.
void* filler() {
  static std::mutex mutex;
  static std::map<void*, void*> loaded;
  void *context = nullptr, *module = nullptr, *function = nullptr;
  const Functions& f = functions();
  if (f.context(&context) != 0 || !context) return nullptr;
  std::lock_guard<std::mutex> lock(mutex);
  auto at = loaded.find(context);
  if (at != loaded.end()) return at->second;
  if (f.load(&module, kText) != 0 || f.function(&function, module, "jit_fill") != 0) function = nullptr;
  return loaded[context] = function;
}

// What `list` gives of a graph or node; empty where the driver refuses.
std::vector<void*> all(int (*list)(void*, void**, size_t*), void* of) {
  size_t n = 0;
  if (list(of, nullptr, &n) != 0) return {};
  std::vector<void*> found(n);
  if (n && list(of, found.data(), &n) != 0) return {};
  return found;
}

bool replace(void* graph, void* node, void* kernel) {
  const Functions& f = functions();
  Fill fill;
  if (f.fill(node, &fill) != 0) return false;
  uint64_t bytes = fill.width * fill.element * fill.height;
  if ((fill.height > 1 && fill.pitch != fill.width * fill.element) || !bytes || bytes > kLargest || bytes % 4 ||
      fill.to % 4)
    return false;
  unsigned value = fill.element == 1   ? (fill.value & 0xff) * 0x01010101u
                   : fill.element == 2 ? (fill.value & 0xffff) * 0x00010001u
                                       : fill.value;
  size_t n_before = 0, n_after = 0;
  if (f.before(node, nullptr, &n_before) != 0 || f.after(node, nullptr, &n_after) != 0) return false;
  std::vector<void*> before = all(f.before, node), after = all(f.after, node);
  if (before.size() != n_before || after.size() != n_after) return false;
  uint64_t words = bytes / 4;
  void* arguments[] = {&fill.to, &words, &value};
  auto blocks = (unsigned)std::min<uint64_t>((words + kThreads - 1) / kThreads, kMostBlocks);
  Launch launch{kernel, {blocks, 1, 1}, {kThreads, 1, 1}, 0, arguments, nullptr};
  void* made = nullptr;
  if (f.add_kernel(&made, graph, before.data(), before.size(), &launch) != 0) return false;
  std::vector<void*> from(after.size(), made);
  if (n_after && f.add_edges(graph, from.data(), after.data(), n_after) != 0) {
    f.destroy_node(made);
    return false;
  }
  return f.destroy_node(node) == 0;
}

}  // namespace

int64_t replace_fills(void* graph) {
  const Functions& f = functions();
  if (!f.complete) return 0;
  int64_t replaced = 0;
  for (void* node : all(f.nodes, graph)) {
    int type = 0;
    if (f.type(node, &type) != 0 || type != kFillNode) continue;
    void* kernel = filler();
    if (!kernel) break;
    replaced += replace(graph, node, kernel);
  }
  return replaced;
}

}  // namespace jit
