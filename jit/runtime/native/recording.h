// What a plan has been recorded into.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <memory>
#include <vector>

#include "plan_graphs.h"
#include "plan_run.h"

namespace jit {

// A step that is no part of a CUDA graph, and is made anew by each call: a collective, or the wait for one.
struct Live {
  size_t step;
  torch::jit::Stack arguments;  // of a collective: tensors where the graphs have them
  int32_t waited = -1;          // of a wait: for which of `lives`, and
  size_t result = 0;            // for which of its results
  Tensor copied;                // where the graphs read what has come in memory of the collective's own
};

// What is done one after the other: the steps of a graph, or one that is live.
struct Piece {
  size_t from = 0, to = 0;
  void* executable = nullptr;  // null where PyTorch's graph is replayed, or nothing is to be launched
  int32_t live = -1;
};

struct Recording {
  enum How : uint8_t { kUnread, kInPlace, kCopied };
  struct Input {
    How how = kUnread;
    void* address = nullptr;  // where the steps have it
    Tensor buffer;            // of a copied one
    int64_t bytes = 0;
    bool back = false;
  };
  struct Owner {
    void* address = nullptr;
    Tensor memory;  // of what is lent, and in a pretended recording
    c10::SmallVector<int64_t, 8> sizes, strides;
    caffe2::TypeMeta meta;
    int64_t bytes = 0;
    bool lent = false, result = false;  // of the caller's
  };

  struct Drawn {
    int32_t slot;
    Tensor buffer;
  };

  std::vector<Input> inputs;
  std::vector<Drawn> drawn;
  std::vector<Owner> owners;  // for each making that is an owner
  // Of tensors that live on: what backwards read, and the caller's results.
  std::shared_ptr<std::atomic<int>> leases = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<std::atomic<int>> results = std::make_shared<std::atomic<int>>(0);
  PyObject* graph = nullptr;  // a torch.cuda.CUDAGraph, or what keeps the memory
  std::vector<Piece> pieces;
  std::vector<Live> lives;
  std::vector<int64_t> regs;  // of a pretended recording
  int64_t kept = 0;           // bytes, counted in `kept_by_all`

  Recording() = default;
  Recording(const Recording&) = delete;
  ~Recording();
};

inline int64_t bytes_of(const Tensor& t) { return extent_bytes(t.sizes(), t.strides(), (int64_t)t.itemsize()); }

inline void* address_of(const Tensor& t) { return const_cast<void*>(t.unsafeGetTensorImpl()->data()); }

// A tensor on memory that somebody else keeps.
inline Tensor placed(const Tensor& like, void* address) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes_of(like),
                                                       c10::DataPtr(address, like.device()), nullptr, false);
  return new_tensor(std::move(storage), like.dtype(), like.device(), like.sizes(), like.strides(), 0);
}

inline c10::DispatchKeySet above_kernels() {
  return c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
}

// How many of the steps are launched by a recording.
size_t launches_of(const Program& program, size_t from, size_t to);
inline size_t launches_of(const Program& program) { return launches_of(program, 0, program.steps.size()); }

}  // namespace jit
