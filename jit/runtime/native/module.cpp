#include "common.h"

namespace {

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "_jit_native",
                          "The native runtime of jit: plans, guard programs, dispatchers, the CPU memory pool.",
                          -1,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__jit_native() {
  jit::Ref module = jit::Ref::steal(PyModule_Create(&definition));
  if (!module || !jit::init_weak(module.get()) || !jit::init_pool(module.get()) || !jit::init_plan(module.get()) ||
      !jit::init_autograd(module.get()) || !jit::init_guards(module.get()) || !jit::init_dispatcher(module.get()) ||
      !jit::init_undo(module.get()) || !jit::init_frame_hook(module.get()) ||
      !jit::init_generator_state(module.get()) || !jit::init_numbers(module.get()) || !jit::init_pieces(module.get()) ||
      !jit::init_rounds(module.get()) || !jit::init_scratch(module.get()))
    return nullptr;
  return module.release();
}
