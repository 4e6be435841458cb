"""The arguments of ``jit.compile``: what is allowed, and what each mode means."""

from __future__ import annotations

from typing import Any, NoReturn

from . import config, telling
from .spelling import meant

# What each mode of torch.compile asks for that is not done; None: nothing.
MODES = {
    None: None,
    "default": None,
    "reduce-overhead": None,
    "max-autotune": "but for products, block sizes come from heuristics and are not searched for",
    "max-autotune-no-cudagraphs": "but for products, block sizes come from heuristics and are not searched for",
}
# The options that a mode sets where the call says nothing else.
OPTIONS = {"reduce-overhead": {"cudagraphs": True}, "max-autotune": {"cudagraphs": True, "templates": True},
           "max-autotune-no-cudagraphs": {"templates": True, "auto_cudagraphs": False}}
_told: set = set()  # modes that the user was told of


def check(fullgraph: object, dynamic: object, mode: object, options: Any, disable: object,
          passes: object = (), recompile_limit: object = None) -> None:
    """Raise TypeError or ValueError, which say what is allowed."""
    for name, value, allowed in (("fullgraph", fullgraph, (bool,)), ("disable", disable, (bool,)),
                                 ("dynamic", dynamic, (bool, type(None))),
                                 ("options", options, (dict, type(None))),
                                 ("recompile_limit", recompile_limit, (int, type(None)))):
        if not isinstance(value, allowed) or type(value) is bool and bool not in allowed:
            raise TypeError(f"{name}={value!r}: expected {' or '.join(t.__name__ for t in allowed)}")
    if not isinstance(passes, (list, tuple)) or not all(map(callable, passes)):
        raise TypeError(f"passes={passes!r}: expected a list of functions of a jit.passes.GraphEditor")
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}: expected one of {', '.join(map(repr, MODES))}"
                         f"{meant(mode, filter(None, MODES))}")
    if recompile_limit is not None and recompile_limit < 1:  # type: ignore[operator]
        raise ValueError(f"recompile_limit={recompile_limit!r}: the least is 1")
    for name, value in (options or {}).items():
        option = config.OPTIONS.get(config.ALSO_CALLED.get(name, name))
        if option is None:
            raise ValueError(f"options: {config.no_option(name)}")
        if type(value) is not option.type:
            raise TypeError(f"options[{name!r}]={value!r}: expected {option.type.__name__}")
        if wrong := config.not_among(option, value):
            raise ValueError(f"options[{name!r}]={value!r}: {wrong}")


def all_options(mode: str | None, options: dict | None, recompile_limit: int | None = None) -> dict:
    """The values for ``jit.config`` that a mode and options together ask for."""
    asked = {**OPTIONS.get(mode or "", {}),
             **{config.ALSO_CALLED.get(name, name): value for name, value in (options or {}).items()}}
    if recompile_limit is not None:
        asked["cache_limit"] = recompile_limit
    if asked.get("cudagraphs") is False:  # said, and not only the default
        asked.setdefault("auto_cudagraphs", False)
    return asked


def tell_of_mode(mode: str | None) -> None:
    """Warn, once per mode, of what it does not get."""
    if mode is not None and MODES[mode] is not None and mode not in _told:
        _told.add(mode)
        telling.warn(f"jit: mode={mode!r} does not do all that torch.compile's does: {MODES[mode]}")


def refuse(model: object) -> NoReturn:
    """Raise the TypeError for what is neither a function nor a module."""
    if isinstance(model, type):
        raise TypeError(f"jit.compile takes a function or a module, not the class {model.__qualname__}; compile an "
                        "instance, or its method")
    raise TypeError(f"jit.compile takes a function or a module, not {type(model).__name__}")
