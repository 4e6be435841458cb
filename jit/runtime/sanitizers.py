"""GCC's sanitizers: what the C++ parts are compiled with under ``JIT_SANITIZE``.

``address`` finds reads and writes outside of what was allocated, and operations that C++ leaves undefined; ``thread``
finds memory that two threads use without order between them. The process has to be started with their libraries
preloaded: ``tests/sanitized.py`` (``make sanitize``) does that.
"""

from __future__ import annotations

from jit import config
from jit.errors import CompileError

# Kernels run their loops in OpenMP's threads, whose library is not built for the thread sanitizer: all that they do
# would be reported.
_COMMON = ("-fno-omit-frame-pointer", "-g1")
_FLAGS: dict[str, dict[str, tuple[str, ...]]] = {
    "": {"runtime": (), "kernels": ()},
    "address": dict.fromkeys(("runtime", "kernels"), ("-fsanitize=address,undefined", "-fno-sanitize=vptr",
                                                      "-fno-sanitize-recover=undefined", *_COMMON)),
    "thread": {"runtime": ("-fsanitize=thread", *_COMMON), "kernels": ()},
}


def flags(part: str) -> tuple[str, ...]:
    """The compiler's additional flags for ``part``: "runtime" or "kernels". Raises CompileError for a sanitizer that is
    not known."""
    if config.sanitize not in _FLAGS:
        raise CompileError(f"JIT_SANITIZE={config.sanitize!r}: expected {', '.join(repr(name) for name in _FLAGS)}")
    return _FLAGS[config.sanitize][part]
