// Launching Triton's cubins through the CUDA driver, which is opened at run time.
#pragma once

#include <memory>
#include <vector>

#include "common.h"

namespace jit {

struct GpuKernel;

// From a plan.GpuKernel record.
std::shared_ptr<GpuKernel> parse_gpu_kernel(PyObject* record, size_t n_int_regs);

// Python is on its way out, and perhaps the driver with it.
bool shutting_down();

// Kernels that are loaded on devices at present.
int64_t loaded_gpu_modules();

// The raw stream that torch launches on at present on device `device`. Takes the GIL when it sees a stream for the
// first time.
void* current_stream(int device);

// Raises what `launch` would, but for errors of the device itself; afterwards the kernel is loaded.
void check_launch(GpuKernel& kernel, int device, size_t n_pointers, const int64_t* ints, const int64_t* grid);

// Makes the context of `device` current, for launches on this thread, and tells whether somebody records what is
// launched on `stream` into a CUDA graph, and keeps it.
bool begin_launches(int device, void* stream);

// Launches on `stream` of `device`, after `begin_launches`, which gave `captured`. Throws c10::Error with the driver's
// message.
void launch(GpuKernel& kernel, int device, void* stream, bool captured, void* const* pointers, size_t n_pointers,
            const int64_t* ints, const int64_t* grid);

// Whether a kernel is made for launches that are joined.
bool takes_together(const GpuKernel& kernel);

// Several launches of such a kernel as one, or as few as it takes. ``arguments``: those of each, one after the other.
void launch_together(GpuKernel& kernel, int device, void* stream, bool captured, size_t n, const int64_t* programs,
                     const uint64_t* arguments, size_t n_arguments);

// Raises what this would, but for errors of the device itself; afterwards the kernel is loaded.
void check_together(GpuKernel& kernel, int device, size_t n_pointers);

// Whether somebody records what is launched on a stream into a CUDA graph.
bool is_capturing(void* stream);

// While one lives, what this thread launches into a CUDA graph belongs to that graph's owner, who keeps the kernels.
struct OwnCapture {
  OwnCapture();
  ~OwnCapture();
  OwnCapture(const OwnCapture&) = delete;
};

// CUDA graphs, by their driver's handles. The caller's context is the device's; they throw as `launch` does.
void begin_capture(void* stream);
void* end_capture(void* stream);  // gives a graph
void abort_capture(void* stream) noexcept;
void* instantiate_graph(void* graph);  // gives an executable; the graph goes
int64_t replace_fills(void* graph);    // makes fills of memory kernels where it can; says how many
void launch_graph(void* executable, void* stream);
void destroy_graph(void* executable) noexcept;

// Events, by the driver's handles, on a stream of the device whose context is current. They throw as `launch` does.
void* record_event(void* event, void* stream);  // made if it is null; gives it
bool has_happened(void* event);
double seconds_between(void* event, void* later);  // of events that have happened
void destroy_event(void* event) noexcept;

// Bytes of memory that the device has whose context is current.
int64_t device_memory();

// Bytes per second that its memory can read or write, by its clock and width.
double device_memory_rate();

// A block of bytes to be copied on a device.
struct Block {
  void* to;
  const void* from;
  int64_t bytes;
};

// Copies blocks on a stream, together as far as possible.
void copy_blocks(int device, void* stream, const Block* blocks, size_t n);

}  // namespace jit
