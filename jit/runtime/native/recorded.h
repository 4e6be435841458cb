// Operators whose gradient is that of the call itself: PyTorch's autograd records the call, and what it has recorded is
// kept, as a tensor, for the backward.
#pragma once

#include <string>

namespace jit {

// Makes sure that there is `jit::recorded_<name>` of `aten::<name>`: it takes for each tensor among its arguments
// whether its gradient is wanted and whether its memory may be written before the backward, and gives one more result,
// the record. False where `name` is none of these, or gives something else than tensors.
bool define_recorded(const std::string& name, const std::string& overload);

}  // namespace jit
