// Launching Triton's cubins through the CUDA driver, which is opened at run time.
#pragma once

#include <memory>
#include <vector>

#include "common.h"

namespace jit {

struct GpuKernel;

// From a plan.GpuKernel record.
std::shared_ptr<GpuKernel> parse_gpu_kernel(PyObject* record, size_t n_int_regs);

// Kernels that are loaded on devices at present.
int64_t loaded_gpu_modules();

// The raw stream that torch launches on at present on device `device`. Takes the GIL when it sees a stream for the
// first time.
void* current_stream(int device);

// Raises what `launch` would, but for errors of the device itself; afterwards the kernel is loaded.
void check_launch(GpuKernel& kernel, int device, size_t n_pointers, const int64_t* ints, const int64_t* grid);

// Launches on `stream` of `device`, whose context is made current. Throws c10::Error with the driver's message.
void launch(GpuKernel& kernel, int device, void* stream, void* const* pointers, size_t n_pointers, const int64_t* ints,
            const int64_t* grid);

}  // namespace jit
