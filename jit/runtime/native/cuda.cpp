// Only the few driver functions used here are declared; no CUDA header is needed, and without a driver nothing here
// is reached.
#include "cuda.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace jit {
namespace {

using CUresult = int;
using CUdevice = int;
using CUcontext = void*;
using CUmodule = void*;
using CUfunction = void*;
using CUstream = void*;
constexpr int kMaxDynamicShared = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kPreferShared = 1;      // CU_FUNC_CACHE_PREFER_SHARED
constexpr int kSharedWithoutOptIn = 48 << 10;
constexpr int kMaxDevices = 64;
constexpr size_t kParameters = 4096;  // bytes that every driver takes for a launch

// CUlaunchConfig, with its one attribute.
struct LaunchAttribute {
  int id;
  char padding[4];
  int value[16];
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared;
  CUstream stream;
  const LaunchAttribute* attributes;
  unsigned n_attributes;
};
constexpr int kProgrammaticSerialization = 6;   // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
constexpr int kGraphsKnowProgrammatic = 12030;  // the first driver that records it

struct Driver {
  CUresult (*init)(unsigned);
  CUresult (*device_get)(CUdevice*, int);
  CUresult (*device_attribute)(int*, int, CUdevice);
  CUresult (*ctx_get_device)(CUdevice*);
  CUresult (*primary_retain)(CUcontext*, CUdevice);
  CUresult (*ctx_get_current)(CUcontext*);
  CUresult (*ctx_set_current)(CUcontext);
  CUresult (*module_load)(CUmodule*, const void*);
  CUresult (*module_unload)(CUmodule);
  CUresult (*is_capturing)(CUstream, int*);
  CUresult (*exchange_capture_mode)(int*);
  CUresult (*get_function)(CUfunction*, CUmodule, const char*);
  CUresult (*set_attribute)(CUfunction, int, int);
  CUresult (*set_cache_config)(CUfunction, int);
  CUresult (*launch_kernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                            void**, void**);
  CUresult (*begin_capture)(CUstream, int);
  CUresult (*end_capture)(CUstream, void**);
  CUresult (*destroy_captured)(void*);
  CUresult (*instantiate)(void**, void*, unsigned long long);
  CUresult (*launch_graph)(void*, CUstream);
  CUresult (*destroy_graph)(void*);
  CUresult (*copy)(void*, const void*, size_t, CUstream);
  CUresult (*event_create)(void**, unsigned);
  CUresult (*event_record)(void*, CUstream);
  CUresult (*event_query)(void*);
  CUresult (*event_elapsed)(float*, void*, void*);
  CUresult (*event_destroy)(void*);
  CUresult (*memory)(size_t*, size_t*);
  CUresult (*launch_kernel_ex)(const LaunchConfig*, CUfunction, void**, void**);
  CUresult (*driver_version)(int*);
  CUresult (*error_name)(CUresult, const char**);
  CUresult (*error_string)(CUresult, const char**);
  std::string problem;  // why the driver cannot be used; empty when it can
};

template <typename F>
void find(Driver& d, void* library, F& f, const char* name) {
  f = reinterpret_cast<F>(dlsym(library, name));
  if (!f && d.problem.empty()) d.problem = std::string("libcuda.so.1 has no ") + name;
}

Driver& driver() {
  static Driver* instance = [] {
    auto* d = new Driver();
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
      const char* why = dlerror();
      d->problem = std::string("the CUDA driver could not be opened: ") + (why ? why : "unknown");
      return d;
    }
    find(*d, library, d->init, "cuInit");
    find(*d, library, d->device_get, "cuDeviceGet");
    find(*d, library, d->device_attribute, "cuDeviceGetAttribute");
    find(*d, library, d->ctx_get_device, "cuCtxGetDevice");
    find(*d, library, d->primary_retain, "cuDevicePrimaryCtxRetain");
    find(*d, library, d->ctx_get_current, "cuCtxGetCurrent");
    find(*d, library, d->ctx_set_current, "cuCtxSetCurrent");
    find(*d, library, d->module_load, "cuModuleLoadData");
    find(*d, library, d->module_unload, "cuModuleUnload");
    find(*d, library, d->is_capturing, "cuStreamIsCapturing");
    find(*d, library, d->exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
    find(*d, library, d->get_function, "cuModuleGetFunction");
    find(*d, library, d->set_attribute, "cuFuncSetAttribute");
    find(*d, library, d->set_cache_config, "cuFuncSetCacheConfig");
    find(*d, library, d->launch_kernel, "cuLaunchKernel");
    find(*d, library, d->begin_capture, "cuStreamBeginCapture_v2");
    find(*d, library, d->end_capture, "cuStreamEndCapture");
    find(*d, library, d->destroy_captured, "cuGraphDestroy");
    find(*d, library, d->instantiate, "cuGraphInstantiateWithFlags");
    find(*d, library, d->launch_graph, "cuGraphLaunch");
    find(*d, library, d->destroy_graph, "cuGraphExecDestroy");
    find(*d, library, d->copy, "cuMemcpyAsync");
    find(*d, library, d->event_create, "cuEventCreate");
    find(*d, library, d->event_record, "cuEventRecord");
    find(*d, library, d->event_query, "cuEventQuery");
    find(*d, library, d->event_elapsed, "cuEventElapsedTime");
    find(*d, library, d->event_destroy, "cuEventDestroy_v2");
    find(*d, library, d->memory, "cuMemGetInfo_v2");
    // Older drivers do without.
    d->launch_kernel_ex = reinterpret_cast<decltype(d->launch_kernel_ex)>(dlsym(library, "cuLaunchKernelEx"));
    d->driver_version = reinterpret_cast<decltype(d->driver_version)>(dlsym(library, "cuDriverGetVersion"));
    int version = 0;
    if (!d->driver_version || d->driver_version(&version) != 0 || version < kGraphsKnowProgrammatic)
      d->launch_kernel_ex = nullptr;
    find(*d, library, d->error_name, "cuGetErrorName");
    find(*d, library, d->error_string, "cuGetErrorString");
    if (d->problem.empty() && d->init(0) != 0) d->problem = "cuInit failed: no usable CUDA device";
    return d;
  }();
  return *instance;
}

void check(CUresult status, const char* what, const std::string& kernel) {
  if (status == 0) return;
  const char *name = nullptr, *text = nullptr;
  driver().error_name(status, &name);
  driver().error_string(status, &text);
  TORCH_CHECK(false, "CUDA driver: ", what, " failed for kernel ", kernel, ": ", name ? name : "error", " (", status,
              "): ", text ? text : "");
}

CUcontext primary_context(int device) {
  static std::mutex mutex;
  static CUcontext contexts[kMaxDevices];
  std::lock_guard<std::mutex> lock(mutex);
  if (!contexts[device]) {
    CUdevice handle;
    check(driver().device_get(&handle, device), "cuDeviceGet", "-");
    check(driver().primary_retain(&contexts[device], handle), "cuDevicePrimaryCtxRetain", "-");
  }
  return contexts[device];
}

}  // namespace

static std::atomic<int64_t> loaded_modules{0};

bool shutting_down() {
#if PY_VERSION_HEX >= 0x030D0000
  return !Py_IsInitialized() || Py_IsFinalizing();
#else
  return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

constexpr size_t kMaxArguments = 256;

struct GpuKernel {
  std::string cubin, name;
  int threads = 0, shared = 0;
  struct Int {
    int32_t index;
    bool wide;
  };
  std::vector<Int> ints;
  std::vector<int32_t> order;  // of parameters: numbers among the pointers, and then the ints; empty: in that order
  int scratch = 2;
  bool early = false;
  size_t joined = 0;  // how many launches one launch takes; 0: it is a kernel as usual
  std::mutex mutex;
  std::atomic<CUfunction> functions[kMaxDevices] = {};
  struct Loaded {
    CUcontext context;
    CUmodule module;
  };
  std::vector<Loaded> modules;        // under `mutex`
  std::atomic<bool> captured{false};  // a CUDA graph of somebody's has a launch of it, and may be replayed at any time

  GpuKernel() = default;
  GpuKernel(const GpuKernel&) = delete;

  // The last plan that launches it is gone, and every run of one with it. What the device has still to do of its
  // launches, the driver waits for.
  ~GpuKernel() {
    if (modules.empty() || captured.load() || shutting_down()) return;
    Driver& d = driver();
    int mode = 2;  // relaxed: a capture that is going on is none of our business
    bool exchanged = d.exchange_capture_mode(&mode) == 0;
    CUcontext before = nullptr;
    if (d.ctx_get_current(&before) == 0) {
      for (const Loaded& l : modules)
        if (d.ctx_set_current(l.context) == 0 && d.module_unload(l.module) == 0) --loaded_modules;
      d.ctx_set_current(before);
    }
    if (exchanged) d.exchange_capture_mode(&mode);
  }

  CUfunction function(int device) {
    CUfunction f = functions[device].load(std::memory_order_acquire);
    if (f) return f;
    std::lock_guard<std::mutex> lock(mutex);
    f = functions[device].load(std::memory_order_relaxed);
    if (f) return f;
    Driver& d = driver();
    CUmodule module;
    // The driver takes anything else for PTX and may crash on it.
    bool elf = cubin.size() >= 4 && std::memcmp(cubin.data(), "\177ELF", 4) == 0;
    TORCH_CHECK(elf, "CUDA driver: cuModuleLoadData takes an ELF cubin, and kernel ", name, " is none");
    CUcontext context = nullptr;
    check(d.ctx_get_current(&context), "cuCtxGetCurrent", name);
    modules.reserve(modules.size() + 1);
    check(d.module_load(&module, cubin.data()), "cuModuleLoadData", name);
    modules.push_back({context, module});
    ++loaded_modules;
    check(d.get_function(&f, module, name.c_str()), "cuModuleGetFunction", name);
    if (shared > kSharedWithoutOptIn) {
      check(d.set_cache_config(f, kPreferShared), "cuFuncSetCacheConfig", name);
      check(d.set_attribute(f, kMaxDynamicShared, shared), "cuFuncSetAttribute", name);
    }
    functions[device].store(f, std::memory_order_release);
    return f;
  }
};

int64_t loaded_gpu_modules() { return loaded_modules.load(); }

static Ref attribute(PyObject* o, const char* name) { return Ref::steal(checked(PyObject_GetAttrString(o, name))); }

std::shared_ptr<GpuKernel> parse_gpu_kernel(PyObject* record, size_t n_int_regs) {
  auto k = std::make_shared<GpuKernel>();
  Ref cubin = attribute(record, "cubin");
  char* bytes;
  Py_ssize_t size;
  if (PyBytes_AsStringAndSize(cubin.get(), &bytes, &size) != 0) throw PythonError();
  k->cubin.assign(bytes, size);
  k->name = as_text(attribute(record, "name").get(), "GpuKernel.name");
  k->threads = 32 * (int)as_int(attribute(record, "num_warps").get(), "GpuKernel.num_warps");
  k->shared = (int)as_int(attribute(record, "shared").get(), "GpuKernel.shared");
  k->scratch = (int)as_int(attribute(record, "scratch").get(), "GpuKernel.scratch");
  k->early = PyObject_IsTrue(attribute(record, "early").get()) == 1;
  int64_t joined = as_int(attribute(record, "joined").get(), "GpuKernel.joined");
  if (joined < 0 || joined == 1 || joined > (int64_t)kParameters / 4)
    raise(PyExc_ValueError, "GpuKernel " + k->name + ": joined is out of range");
  k->joined = (size_t)joined;
  if (as_int(attribute(record, "cluster").get(), "GpuKernel.cluster") != 1)
    raise(PyExc_ValueError, "GpuKernel " + k->name + ": thread block clusters are not launched; cluster has to be 1");
  if (k->threads <= 0 || k->threads > 1024 || k->scratch < 0 || k->scratch > 4)
    raise(PyExc_ValueError, "GpuKernel " + k->name + ": num_warps or scratch is out of range");
  Ref ints = attribute(record, "ints");
  Items list(ints.get(), "GpuKernel.ints");
  for (Py_ssize_t i = 0; i < list.size; ++i) {
    Items entry(list[i], "an entry of GpuKernel.ints");
    int64_t index = as_int(entry[0], "an index in GpuKernel.ints");
    std::string type = as_text(entry[1], "a type in GpuKernel.ints");
    if (index < 0 || (size_t)index >= n_int_regs || (type != "i32" && type != "i64"))
      raise(PyExc_ValueError, "GpuKernel " + k->name + ": ints takes (index of the step's int, 'i32' or 'i64')");
    k->ints.push_back({(int32_t)index, type == "i64"});
    if (joined && (index != i || type != "i64"))
      raise(PyExc_ValueError, "GpuKernel " + k->name + ": launches that are joined have all ints, in 64 bits each");
  }
  Ref order = attribute(record, "order");
  Items places(order.get(), "GpuKernel.order");
  for (Py_ssize_t i = 0; i < places.size; ++i) {
    int64_t place = as_int(places[i], "GpuKernel.order");
    if (joined || place < 0 || place >= (int64_t)kMaxArguments)
      raise(PyExc_ValueError, "GpuKernel " + k->name + ": order is out of range");
    k->order.push_back((int32_t)place);
  }
  return k;
}

void* current_stream(int device) {
  // A stream's id stands for the same driver handle for good, so that Python, which alone gives handles out, is asked
  // once for each.
  static std::mutex mutex;
  static std::map<std::pair<int, c10::StreamId>, void*> handles;
  struct Last {
    int device = -1;
    c10::StreamId id = 0;
    void* handle = nullptr;
  };
  static thread_local Last last;
  c10::Stream stream =
      c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(c10::Device(c10::kCUDA, (c10::DeviceIndex)device));
  if (last.device == device && last.id == stream.id()) return last.handle;
  auto key = std::make_pair(device, stream.id());
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto at = handles.find(key);
    if (at != handles.end()) {
      last = {device, stream.id(), at->second};
      return at->second;
    }
  }
  PyGILState_STATE gil = PyGILState_Ensure();
  void* handle = nullptr;
  bool failed = true;
  {
    Ref torch = Ref::steal(PyImport_ImportModule("torch._C"));
    Ref raw = Ref::steal(torch ? PyObject_CallMethod(torch.get(), "_cuda_getCurrentRawStream", "i", device) : nullptr);
    if (raw) handle = PyLong_AsVoidPtr(raw.get());
    failed = PyErr_Occurred() != nullptr;
    if (failed) PyErr_Clear();
  }
  PyGILState_Release(gil);
  TORCH_CHECK(!failed, "torch does not say which CUDA stream is current on device ", device);
  std::lock_guard<std::mutex> lock(mutex);
  last = {device, stream.id(), handle};
  return handles[key] = handle;
}

static thread_local int own_captures = 0;

OwnCapture::OwnCapture() { ++own_captures; }
OwnCapture::~OwnCapture() { --own_captures; }

bool is_capturing(void* stream) {
  int capturing = 0;
  return driver().problem.empty() && driver().is_capturing(stream, &capturing) == 0 && capturing;
}

void begin_capture(void* stream) {
  constexpr int kOnThisThread = 1;  // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
  check(driver().begin_capture(stream, kOnThisThread), "cuStreamBeginCapture", "-");
}

void* end_capture(void* stream) {
  void* graph = nullptr;
  check(driver().end_capture(stream, &graph), "cuStreamEndCapture", "-");
  return graph;
}

void abort_capture(void* stream) noexcept {
  void* graph = nullptr;
  if (driver().end_capture(stream, &graph) == 0 && graph) driver().destroy_captured(graph);
}

void* instantiate_graph(void* graph) {
  void* executable = nullptr;
  replace_fills(graph);
  CUresult status = driver().instantiate(&executable, graph, 0);
  driver().destroy_captured(graph);
  check(status, "cuGraphInstantiateWithFlags", "-");
  return executable;
}

void launch_graph(void* executable, void* stream) {
  check(driver().launch_graph(executable, stream), "cuGraphLaunch", "-");
}

void destroy_graph(void* executable) noexcept {
  if (executable && !shutting_down()) driver().destroy_graph(executable);
}

void* record_event(void* event, void* stream) {
  if (!event) check(driver().event_create(&event, 0), "cuEventCreate", "-");
  check(driver().event_record(event, stream), "cuEventRecord", "-");
  return event;
}

bool has_happened(void* event) { return driver().event_query(event) == 0; }

double seconds_between(void* event, void* later) {
  float milliseconds = 0;
  check(driver().event_elapsed(&milliseconds, event, later), "cuEventElapsedTime", "-");
  return milliseconds / 1e3;
}

void destroy_event(void* event) noexcept {
  if (event && !shutting_down()) driver().event_destroy(event);
}

int64_t device_memory() {
  size_t left = 0, all = 0;
  check(driver().memory(&left, &all), "cuMemGetInfo", "-");
  return (int64_t)all;
}

double device_memory_rate() {
  constexpr int kMemoryClock = 36, kMemoryWidth = 37;  // CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE (kHz), .._BUS_WIDTH
  CUdevice device;
  int clock = 0, width = 0;
  check(driver().ctx_get_device(&device), "cuCtxGetDevice", "-");
  check(driver().device_attribute(&clock, kMemoryClock, device), "cuDeviceGetAttribute", "-");
  check(driver().device_attribute(&width, kMemoryWidth, device), "cuDeviceGetAttribute", "-");
  return 2e3 * clock * (width / 8);
}

// A table of up to kBlocks blocks, one for each y of the grid: 16 bytes per thread and turn where both ends are
// aligned, then what is left byte by byte.
constexpr size_t kBlocks = 128;
static const char kCopyBlocks[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry jit_copy_blocks(.param .align 8 .b8 table[3072])
{
  .reg .pred %p<4>;
  .reg .b32 %r<8>;
  .reg .b64 %d<16>;
  .reg .b32 %w<4>;
  .reg .b16 %h<1>;
  mov.u32 %r0, %ctaid.y;
  mul.wide.u32 %d0, %r0, 24;
  mov.b64 %d1, table;
  add.u64 %d1, %d1, %d0;
  ld.param.u64 %d2, [%d1];
  ld.param.u64 %d3, [%d1+8];
  ld.param.u64 %d4, [%d1+16];
  cvta.to.global.u64 %d2, %d2;
  cvta.to.global.u64 %d3, %d3;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %nctaid.x;
  mad.lo.u32 %r5, %r1, %r2, %r3;
  mul.lo.u32 %r6, %r4, %r2;
  cvt.u64.u32 %d5, %r5;
  cvt.u64.u32 %d6, %r6;
  mov.u64 %d7, 0;
  or.b64 %d8, %d2, %d3;
  and.b64 %d8, %d8, 15;
  setp.ne.u64 %p0, %d8, 0;
  @%p0 bra bytes;
  and.b64 %d7, %d4, -16;
  shl.b64 %d9, %d5, 4;
  shl.b64 %d10, %d6, 4;
wide:
  setp.ge.u64 %p1, %d9, %d7;
  @%p1 bra bytes;
  add.u64 %d11, %d3, %d9;
  ld.global.v4.u32 {%w0, %w1, %w2, %w3}, [%d11];
  add.u64 %d12, %d2, %d9;
  st.global.v4.u32 [%d12], {%w0, %w1, %w2, %w3};
  add.u64 %d9, %d9, %d10;
  bra wide;
bytes:
  add.u64 %d13, %d7, %d5;
narrow:
  setp.ge.u64 %p2, %d13, %d4;
  @%p2 bra done;
  add.u64 %d11, %d3, %d13;
  ld.global.u8 %h0, [%d11];
  add.u64 %d12, %d2, %d13;
  st.global.u8 [%d12], %h0;
  add.u64 %d13, %d13, %d6;
  bra narrow;
done:
  ret;
}
)";

// The kernel for a device; null where the driver does not take its text.
static CUfunction block_copier(int device) {
  static std::mutex mutex;
  static bool tried[kMaxDevices];
  static CUfunction functions[kMaxDevices];
  std::lock_guard<std::mutex> lock(mutex);
  if (!tried[device]) {
    tried[device] = true;
    CUmodule module;
    if (driver().module_load(&module, kCopyBlocks) != 0 ||
        driver().get_function(&functions[device], module, "jit_copy_blocks") != 0)
      functions[device] = nullptr;
  }
  return functions[device];
}

void make_context_current(int device, const std::string& what);

void copy_blocks(int device, void* stream, const Block* blocks, size_t n) {
  static_assert(sizeof(Block) == 24 && kBlocks * sizeof(Block) == 3072);
  constexpr int64_t kThreads = 256, kPerThread = 64, kMostRows = 512;
  if (n == 0) return;
  make_context_current(device, "jit_copy_blocks");
  CUfunction kernel = n > 1 || blocks[0].bytes % 16 == 0 ? block_copier(device) : nullptr;
  for (size_t done = 0; done < n;) {
    size_t now = kernel ? std::min(n - done, kBlocks) : 1;
    if (!kernel) {
      const Block& b = blocks[done];
      if (b.bytes) check(driver().copy(b.to, b.from, (size_t)b.bytes, stream), "cuMemcpyAsync", "-");
    } else {
      Block table[kBlocks];
      std::memcpy(table, blocks + done, now * sizeof(Block));
      int64_t most = 0;
      for (size_t i = 0; i < now; ++i) most = std::max(most, table[i].bytes);
      unsigned rows = (unsigned)std::clamp<int64_t>(most / (kThreads * kPerThread) + 1, 1, kMostRows);
      void* arguments[] = {table};
      check(driver().launch_kernel(kernel, rows, (unsigned)now, 1, kThreads, 1, 1, 0, stream, arguments, nullptr),
            "cuLaunchKernel", "jit_copy_blocks");
    }
    done += now;
  }
}

void make_context_current(int device, const std::string& what) {
  Driver& d = driver();
  TORCH_CHECK(d.problem.empty(), d.problem);
  TORCH_CHECK(device >= 0 && device < kMaxDevices, "CUDA device index ", device, " is out of range");
  CUcontext context = nullptr;
  check(d.ctx_get_current(&context), "cuCtxGetCurrent", what);
  if (!context) check(d.ctx_set_current(primary_context(device)), "cuCtxSetCurrent", what);
}

void check_grid(const GpuKernel& kernel, const int64_t* grid) {
  TORCH_CHECK(
      grid[0] > 0 && grid[0] <= 0x7fffffff && grid[1] > 0 && grid[1] <= 65535 && grid[2] > 0 && grid[2] <= 65535,
      "kernel ", kernel.name, ": grid (", grid[0], ", ", grid[1], ", ", grid[2], ") is beyond the launch limits");
}

size_t count_arguments(const GpuKernel& kernel, size_t n_pointers) {
  size_t n = n_pointers + kernel.ints.size() + kernel.scratch;
  TORCH_CHECK(kernel.order.size() <= n, "kernel ", kernel.name, " has too many parameters");
  for (int32_t place : kernel.order)
    TORCH_CHECK((size_t)place < n_pointers + kernel.ints.size(), "kernel ", kernel.name, " has no argument ", place);
  TORCH_CHECK(n <= kMaxArguments, "kernel ", kernel.name, " has ", n, " arguments; at most ", kMaxArguments,
              " are launched");
  return n;
}

void check_narrow(const GpuKernel& kernel, int64_t v) {
  TORCH_CHECK(v >= INT32_MIN && v <= INT32_MAX, "kernel ", kernel.name, ": integer argument ", v,
              " does not fit into 32 bits");
}

void check_launch(GpuKernel& kernel, int device, size_t n_pointers, const int64_t* ints, const int64_t* grid) {
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return;
  check_grid(kernel, grid);
  count_arguments(kernel, n_pointers);
  for (auto& spec : kernel.ints)
    if (!spec.wide) check_narrow(kernel, ints[spec.index]);
  make_context_current(device, kernel.name);
  kernel.function(device);
}

bool begin_launches(int device, void* stream) {
  make_context_current(device, "-");
  return !own_captures && is_capturing(stream);
}

// The launch itself, with the addresses of the arguments.
static void start(GpuKernel& kernel, int device, void* stream, bool captured, const int64_t* grid, void** arguments) {
  if (captured) kernel.captured.store(true, std::memory_order_relaxed);
  if (kernel.early && driver().launch_kernel_ex) {
    static const LaunchAttribute attribute{kProgrammaticSerialization, {}, {1}};
    LaunchConfig config{{(unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2]},
                        {(unsigned)kernel.threads, 1, 1},
                        (unsigned)kernel.shared,
                        stream,
                        &attribute,
                        1};
    check(driver().launch_kernel_ex(&config, kernel.function(device), arguments, nullptr), "cuLaunchKernelEx",
          kernel.name);
    return;
  }
  check(driver().launch_kernel(kernel.function(device), (unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2],
                               kernel.threads, 1, 1, kernel.shared, stream, arguments, nullptr),
        "cuLaunchKernel", kernel.name);
}

void launch(GpuKernel& kernel, int device, void* stream, bool captured, void* const* pointers, size_t n_pointers,
            const int64_t* ints, const int64_t* grid) {
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return;
  check_grid(kernel, grid);
  count_arguments(kernel, n_pointers);
  void* arguments[kMaxArguments];
  int64_t values[kMaxArguments];
  size_t at = 0;
  for (size_t i = 0; i < n_pointers; ++i, ++at) arguments[at] = const_cast<void**>(&pointers[i]);
  for (auto& spec : kernel.ints) {
    int64_t v = ints[spec.index];
    if (spec.wide) {
      values[at] = v;
    } else {
      check_narrow(kernel, v);
      int32_t narrow = (int32_t)v;
      std::memcpy(&values[at], &narrow, sizeof(narrow));
    }
    arguments[at] = &values[at];
    ++at;
  }
  if (!kernel.order.empty()) {
    void* given[kMaxArguments];
    std::copy(arguments, arguments + at, given);
    at = 0;
    for (int32_t place : kernel.order) arguments[at++] = given[place];
  }
  int64_t nothing = 0;
  for (int i = 0; i < kernel.scratch; ++i, ++at) arguments[at] = &nothing;
  start(kernel, device, stream, captured, grid, arguments);
}

bool takes_together(const GpuKernel& kernel) { return kernel.joined > 0; }

// The words in front of the arguments, as `worker.places` has them.
static size_t words_of(const GpuKernel& kernel) {
  size_t words = 2;
  while (words < kernel.joined) words *= 2;
  return words;
}

static void check_parameters(const GpuKernel& kernel, size_t n_arguments) {
  TORCH_CHECK(4 * words_of(kernel) + 8 * n_arguments * kernel.joined <= kParameters, "kernel ", kernel.name, " has ",
              n_arguments, " arguments, too many for launches that are joined");
}

void check_together(GpuKernel& kernel, int device, size_t n_pointers) {
  check_parameters(kernel, n_pointers + kernel.ints.size());
  make_context_current(device, kernel.name);
  kernel.function(device);
}

void launch_together(GpuKernel& kernel, int device, void* stream, bool captured, size_t n, const int64_t* programs,
                     const uint64_t* arguments, size_t n_arguments) {
  check_parameters(kernel, n_arguments);
  const size_t words = words_of(kernel);
  alignas(8) char table[kParameters];
  auto* first = reinterpret_cast<uint32_t*>(table);
  char* place = table + 4 * words;
  int64_t grid[3] = {0, 1, 1};
  size_t count = 0;
  auto flush = [&] {
    if (count == 0) return;
    for (size_t k = count; k < words; ++k) first[k] = UINT32_MAX;
    void* parameters[] = {table};
    start(kernel, device, stream, captured, grid, parameters);
    count = 0;
    grid[0] = 0;
  };
  for (size_t k = 0; k < n; ++k) {
    if (programs[k] == 0) continue;
    TORCH_CHECK(programs[k] > 0 && programs[k] <= 0x7fffffff, "kernel ", kernel.name, ": ", programs[k],
                " programs are beyond the launch limits");
    if (count == kernel.joined || grid[0] + programs[k] > 0x7fffffff) flush();
    first[count] = (uint32_t)grid[0];
    std::memcpy(place + 8 * n_arguments * count, arguments + k * n_arguments, 8 * n_arguments);
    grid[0] += programs[k];
    ++count;
  }
  flush();
}

}  // namespace jit
