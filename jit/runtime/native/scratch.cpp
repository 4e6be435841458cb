// Memory of the calling thread for what a CPU kernel keeps for itself while it runs. All kernels of a thread share it.
//
// It is here, and not in the libraries of the kernels, so that these have no thread-local data of their own: the
// dynamic linker keeps a list of all libraries that have, each thread that starts goes through it, and glibc 2.36 has
// ended processes in that ("_dl_allocate_tls_init: Assertion `listp != NULL' failed") that had loaded and closed
// hundreds.
#include <cstdint>
#include <cstdlib>

#include "common.h"

namespace jit {
namespace {

constexpr uintptr_t kLine = 64;  // what a kernel is given begins with a cache line

class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { free(raw_); }

  char* of(int64_t bytes) {
    if (size_ < bytes) {
      free(raw_);
      raw_ = static_cast<char*>(malloc(static_cast<size_t>(bytes) + kLine));
      if (!raw_) abort();  // a kernel cannot fail
      start_ = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(raw_) + kLine - 1) & ~(kLine - 1));
      size_ = bytes;
    }
    return start_;
  }

 private:
  char* raw_ = nullptr;
  char* start_ = nullptr;
  int64_t size_ = 0;
};

// `which`: 0 for what one thread works on, 1 for what it shares with the threads that help it.
char* scratch(int which, int64_t bytes) {
  static thread_local Memory memories[2];
  return memories[which].of(bytes);
}

PyObject* address(PyObject*, PyObject*) { return PyLong_FromVoidPtr(reinterpret_cast<void*>(&scratch)); }

PyMethodDef methods[] = {{"scratch_address", address, METH_NOARGS,
                          "scratch_address() -> int: of the function that gives kernels memory of their thread"},
                         {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool init_scratch(PyObject* module) { return PyModule_AddFunctions(module, methods) == 0; }

}  // namespace jit
