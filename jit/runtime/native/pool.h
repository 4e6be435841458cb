// The pooled CPU allocator: large freed blocks are kept, with their pages, for the next plan run.
#pragma once

#include <c10/core/Allocator.h>

namespace jit {

// Never destroyed, so that tensors may outlive every plan and the interpreter itself.
c10::Allocator* cpu_pool();

}  // namespace jit
