// Matrix products of halves and of float32 by cuBLASLt itself, which says once for each layout how it is done:
// PyTorch's operators ask on each call, which takes longer than the launch.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace jit {

// A matrix, or several of them, in memory; sizes and strides in elements, of batches first.
struct Matrix {
  void* data = nullptr;
  at::ScalarType dtype = at::ScalarType::Undefined;
  int dims = 0;
  std::array<int64_t, 3> sizes{}, strides{};
};

// How the products of one step are done, by their layouts.
class Products {
 public:
  Products();
  ~Products();
  Products(const Products&) = delete;

  // c = a @ b, or bias + a @ b, on `stream` of `device`, whose context is current. `bias` is a vector, of c's size and
  // layout, or null. False where this is left to PyTorch; nothing has been done then.
  bool run(int device, void* stream, const Matrix& a, const Matrix& b, const Matrix* bias, const Matrix& c);

 private:
  struct Known;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Known>> known_;
};

// Whether products are done here at all; for tests and measurements. Gives what held before.
bool direct_products(bool on);

}  // namespace jit
