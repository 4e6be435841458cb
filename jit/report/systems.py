"""The systems that ``bench`` compares, and what their first call can have been.

It imports nothing of the package, as ``calls.py`` does not.
"""

EAGER, TORCH, JIT = "eager", "torch.compile", "jit"
COMPILED = "compiled"
READ = "read from its cache"
PARTLY = "captured, its kernels read from its cache"
NOTHING = "nothing to compile"
