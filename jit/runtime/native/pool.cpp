// Blocks below 64 KiB go straight to malloc. Larger ones are rounded up to a size class (eight classes per power of
// two, at most 12.5 % more) and, when freed, kept in a list per class: reusing one costs no page faults. The bytes kept
// are bounded; the oldest blocks leave first. Every block is 64-byte aligned; a header in front of it holds its class,
// so that a free needs no look-up.
#include "pool.h"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <sys/mman.h>

#include <cstdlib>
#include <list>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "common.h"

namespace jit {
namespace {

constexpr size_t kMinPooled = 64 << 10;
constexpr size_t kHuge = 2 << 20;
constexpr size_t kHeader = 64;

struct Header {
  size_t capacity;  // bytes of the block, header included; 0 for one that is not pooled
  void* start;      // what malloc gave
};
static_assert(sizeof(Header) <= kHeader);

size_t size_class(size_t n) {
  int top = 63 - __builtin_clzll(n);
  size_t step = size_t(1) << (top - 3);
  return (n + step - 1) & ~(step - 1);
}

struct Pool final : c10::Allocator {
  std::mutex mutex;
  // Least recently freed first; each class's list points into it, last freed on top.
  std::list<Header*> age;
  std::unordered_map<size_t, std::vector<std::list<Header*>::iterator>> classes;
  size_t limit = size_t(512) << 20;
  size_t cached = 0, hits = 0, misses = 0;

  static void* data_of(Header* h) { return reinterpret_cast<char*>(h) + kHeader; }

  // Straight from malloc, whose small blocks are faster than aligned ones.
  static Header* small(size_t n) {
    void* start = std::malloc(n + 2 * kHeader);
    if (!start) return nullptr;
    auto data = (reinterpret_cast<uintptr_t>(start) + kHeader + 63) & ~uintptr_t(63);
    auto* h = reinterpret_cast<Header*>(data - kHeader);
    h->start = start;
    return h;
  }

  static Header* fresh(size_t capacity) {
    // Big blocks start on a huge page, which makes first touches cheap. The data, not the header, is what has to be
    // aligned.
    size_t align = capacity >= 2 * kHuge ? kHuge : 64;
    void* p = nullptr;
    if (posix_memalign(&p, align, capacity) != 0) return nullptr;
    if (align == kHuge) madvise(p, capacity, MADV_HUGEPAGE);
    auto* h = static_cast<Header*>(p);
    h->start = p;
    return h;
  }

  c10::DataPtr allocate(size_t n) override {
    if (n == 0) return {nullptr, c10::Device(c10::DeviceType::CPU)};
    Header* h = nullptr;
    size_t bytes = n + kHeader;
    TORCH_CHECK(bytes > n, "jit: allocation of ", n, " bytes is too large");
    if (bytes < kMinPooled) {
      h = small(n);
      TORCH_CHECK_WITH(OutOfMemoryError, h, "jit: not enough memory: ", n, " bytes could not be allocated on the CPU");
      h->capacity = 0;
    } else {
      size_t capacity = size_class(bytes);
      {
        std::lock_guard<std::mutex> lock(mutex);
        auto it = classes.find(capacity);
        if (it != classes.end() && !it->second.empty()) {
          auto where = it->second.back();
          it->second.pop_back();
          h = *where;
          age.erase(where);
          cached -= capacity;
          ++hits;
        } else {
          ++misses;
        }
      }
      if (!h) h = fresh(capacity);
      if (!h) {
        release(0);
        h = fresh(capacity);
      }
      TORCH_CHECK_WITH(OutOfMemoryError, h, "jit: not enough memory: ", n, " bytes could not be allocated on the CPU");
      h->capacity = capacity;
    }
    return {data_of(h), h, &Pool::free_block, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void* dest, const void* src, size_t count) const override { std::memcpy(dest, src, count); }

  static void free_block(void* context);

  void put(Header* h) {
    std::vector<Header*> out;
    {
      std::lock_guard<std::mutex> lock(mutex);
      size_t capacity = h->capacity;
      if (capacity > limit) {
        out.push_back(h);
      } else {
        age.push_back(h);
        classes[capacity].push_back(std::prev(age.end()));
        cached += capacity;
        shrink(limit, out);
      }
    }
    for (Header* o : out) std::free(o);
  }

  // Takes the oldest blocks out until at most `bytes` are cached. The mutex is held.
  void shrink(size_t bytes, std::vector<Header*>& out) {
    while (cached > bytes) {
      Header* h = age.front();
      auto& stack = classes[h->capacity];
      // The oldest block of all is the oldest of its class: the bottom of its stack.
      stack.erase(stack.begin());
      age.pop_front();
      cached -= h->capacity;
      out.push_back(h);
    }
  }

  void release(size_t keep) {
    std::vector<Header*> out;
    {
      std::lock_guard<std::mutex> lock(mutex);
      shrink(keep, out);
    }
    for (Header* o : out) std::free(o);
  }
};

Pool* pool() {
  static Pool* instance = [] {
    auto* p = new Pool();
    // A fork while another thread holds the lock would leave it locked in the child.
    pthread_atfork([] { pool()->mutex.lock(); }, [] { pool()->mutex.unlock(); }, [] { pool()->mutex.unlock(); });
    return p;
  }();
  return instance;
}

void Pool::free_block(void* context) {
  auto* h = static_cast<Header*>(context);
  if (h->capacity == 0) {
    std::free(h->start);
  } else {
    pool()->put(h);
  }
}

PyObject* py_release_pool(PyObject*, PyObject*) {
  Py_BEGIN_ALLOW_THREADS pool() -> release(0);
  Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

PyObject* py_set_pool_limit(PyObject*, PyObject* arg) {
  size_t n = PyLong_AsSize_t(arg);
  if (n == size_t(-1) && PyErr_Occurred()) return nullptr;
  {
    std::lock_guard<std::mutex> lock(pool()->mutex);
    pool()->limit = n;
  }
  pool()->release(n);
  Py_RETURN_NONE;
}

PyObject* py_pool_stats(PyObject*, PyObject*) {
  size_t cached, blocks, limit, hits, misses;
  {
    // Not while Python objects are made: that may collect garbage, tensors of ours among it, whose memory comes back
    // here.
    std::lock_guard<std::mutex> lock(pool()->mutex);
    Pool* p = pool();
    cached = p->cached, blocks = p->age.size(), limit = p->limit, hits = p->hits, misses = p->misses;
  }
  return Py_BuildValue("{s:n,s:n,s:n,s:n,s:n}", "cached_bytes", (Py_ssize_t)cached, "cached_blocks", (Py_ssize_t)blocks,
                       "limit", (Py_ssize_t)limit, "hits", (Py_ssize_t)hits, "misses", (Py_ssize_t)misses);
}

PyMethodDef methods[] = {
    {"release_pool", Entry<py_release_pool>::call, METH_NOARGS,
     "Give the CPU memory that the pool keeps back to the system."},
    {"set_pool_limit", Entry<py_set_pool_limit>::call, METH_O,
     "set_pool_limit(bytes): most bytes that the pool may keep."},
    {"pool_stats", Entry<py_pool_stats>::call, METH_NOARGS,
     "Counters of the CPU pool: cached_bytes, cached_blocks, limit, hits, misses."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

c10::Allocator* cpu_pool() { return pool(); }

bool init_pool(PyObject* module) { return PyModule_AddFunctions(module, methods) == 0; }

}  // namespace jit
