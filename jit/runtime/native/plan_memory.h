// Tensors made by hand: storages from the pool or torch's allocators, and tensors on them, with no dispatch.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include "pool.h"

namespace jit {

inline c10::intrusive_ptr<c10::StorageImpl> new_storage(size_t bytes, c10::Device device) {
  c10::Allocator* allocator = device.is_cpu() ? cpu_pool() : c10::GetAllocator(device.type());
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, allocator->allocate(bytes),
                                               allocator, /*resizable=*/true);
}

inline at::Tensor new_tensor(c10::intrusive_ptr<c10::StorageImpl> storage, caffe2::TypeMeta meta, c10::Device device,
                             c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  auto key = device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  at::Tensor t =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), c10::DispatchKeySet(key), meta);
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return t;
}

// Bytes from the storage's start to behind the last element.
inline int64_t extent_bytes(c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t itemsize) {
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    TORCH_CHECK(sizes[i] >= 0, "a plan allocates a tensor of negative size ", sizes[i]);
    if (sizes[i] == 0) return 0;
    last += (sizes[i] - 1) * strides[i];
  }
  return (last + 1) * itemsize;
}

// A copy in memory of its own, with the strides of the original or others. The caller sees to it that autograd does not
// record.
inline at::Tensor fresh_copy(const at::Tensor& t, c10::IntArrayRef strides) {
  at::Tensor copy = new_tensor(new_storage((size_t)extent_bytes(t.sizes(), strides, (int64_t)t.itemsize()), t.device()),
                               t.dtype(), t.device(), t.sizes(), strides, 0);
  copy.copy_(t);
  return copy;
}

// A tensor on the same memory with no autograd history and a version counter of its own.
inline at::Tensor alias_of(const at::Tensor& t) {
  return at::Tensor(t.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0),
                                                                     /*allow_tensor_metadata_change=*/false));
}

}  // namespace jit
