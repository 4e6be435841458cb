"""Loads cubins and launches kernels through the CUDA driver, for the GPU tests; independent of the runtime."""

import ctypes

import torch

from jit.graph import dims

_driver = None


def driver():
    global _driver
    if _driver is None:
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        _driver = ctypes.CDLL("libcuda.so.1")
    return _driver


def check(code):
    if code:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"CUDA error {code}: {text.value.decode() if text.value else ''}")


class Launcher:
    """A built kernel, ready to run: ``launcher(tensors, sizes)`` in the order of ``kernel.buffers`` and
    ``kernel.sizes``."""

    def __init__(self, compiled, sizes=()):
        d = driver()
        self.compiled = compiled
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        check(d.cuModuleLoadData(ctypes.byref(module), compiled.cubin))
        check(d.cuModuleGetFunction(ctypes.byref(self.function), module, compiled.function.encode()))
        if compiled.shared > 48 * 1024:
            check(d.cuFuncSetAttribute(self.function, 8, compiled.shared))

    def attribute(self, number):
        """A CUfunction_attribute: 3 is the local memory in bytes (spills), 4 the registers."""
        value = ctypes.c_int()
        check(driver().cuFuncGetAttribute(ctypes.byref(value), number, self.function))
        return value.value

    def prepare(self, tensors, sizes=(), names=()):
        """The argument array and the grid of a launch."""
        values = ([ctypes.c_void_p(t.data_ptr()) for t in tensors] + [ctypes.c_int64(s) for s in sizes]
                  + [ctypes.c_void_p(0)] * 2)
        array = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])
        grid = dims.evaluate(self.compiled.source.grid, dict(zip(names, sizes)))
        return values, array, grid

    def launch(self, prepared):
        _, array, grid = prepared
        if grid:
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            c = self.compiled
            check(driver().cuLaunchKernel(self.function, grid, 1, 1, 32 * c.warps, 1, 1, c.shared, stream, array, None))

    def __call__(self, tensors, sizes=(), names=()):
        self.launch(self.prepare(tensors, sizes, names))
