"""Every option: name, type, default, its environment variable and one line of help. Read and write them as ``jit.config.NAME``."""

from __future__ import annotations

import dataclasses
import os
import sys
import types


@dataclasses.dataclass(frozen=True)
class Option:
    """A row of the option table. The environment variable is ``JIT_`` and the name in capitals."""

    default: object
    help: str

    @property
    def type(self):
        return type(self.default)


OPTIONS = {
    "cache_dir": Option(os.path.join(os.path.expanduser("~"), ".cache", "jit"), "folder of the kernel cache and of the built runtime"),
    "cache_limit": Option(8, "compiled entries a function may have before it runs in eager"),
    "cpu_pool_mb": Option(512, "megabytes of freed CPU output memory that are kept for reuse"),
    "strict": Option(False, "raise on an internal failure instead of warning and running in eager"),
    "match_eager_rounding": Option(False, "round half-precision intermediates as eager does"),
    "compile_threads": Option(max(1, min(16, os.cpu_count() or 1)), "kernels compiled at the same time"),
}


def _parse(name: str, option: Option, text: str):
    if option.type is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off", ""):
            return False
        raise ValueError(f"JIT_{name.upper()}={text!r}: expected 1 or 0")
    try:
        return option.type(text)
    except ValueError:
        raise ValueError(f"JIT_{name.upper()}={text!r}: expected {option.type.__name__}") from None


class _Config(types.ModuleType):
    """The module itself: setting an unknown option, or one to another type, raises."""

    def __setattr__(self, name, value):
        if not name.startswith("__"):
            if name not in OPTIONS:
                raise AttributeError(f"jit.config has no option {name!r}; the options are: {', '.join(OPTIONS)}")
            if type(value) is not OPTIONS[name].type:
                raise TypeError(f"jit.config.{name} takes {OPTIONS[name].type.__name__}, not {type(value).__name__}")
        super().__setattr__(name, value)


def describe() -> str:
    """A line per option: name, present value, environment variable, help."""
    return "\n".join(f"{n} = {globals()[n]!r}  (JIT_{n.upper()}): {o.help}" for n, o in OPTIONS.items())


for _name, _option in OPTIONS.items():
    _text = os.environ.get("JIT_" + _name.upper())
    globals()[_name] = _option.default if _text is None else _parse(_name, _option, _text)
sys.modules[__name__].__class__ = _Config
