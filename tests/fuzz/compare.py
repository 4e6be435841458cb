"""One program in eager and compiled, call by call: results, arguments, globals, exceptions and output have to be the
same."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import io
import math
import random
import re
import signal
import sys
import types
import warnings

import numpy as np
import torch

import jit
from jit import backends
from jit.failures import InternalFailure
from jit.frame import dispatch

from frame_harness import same

from .themes import control, transforms

GRADIENTS = 2e-4  # CLOSE of programs with derivatives, which may be rounded in another order
EAGER_SECONDS, COMPILED_SECONDS = 1.0, 60.0
# Of an object, in its text or the end of it: never the same
_ADDRESS = re.compile("0x[0-9a-f]{6,}|', 'x', '|(?<!<)\\b[0-9a-f]+>")
# A variable that closures share is a free variable of the function that goes on after a break, and Python says so when
# it is not set.
_UNSET, _FREE = re.compile("cannot access local variable"), re.compile("cannot access free variable")
_FREE_TEXT = re.compile(
    r"NameError\(\W*cannot access free variable (\W*\w+\W*) where it is not associated with a value in enclosing scope")
# An index of a tensor without dimensions: PyTorch tells the size that happens to lie there, as ``max(0).values`` leaves
# a 1 behind.
_NO_SIZE = re.compile(r"(is out of bounds for dimension 0 with size) [01]\b")
# A node of autograd has the name of an operator of PyTorch's in eager, and of a plan, or what stands for it, compiled.
_NODE = re.compile(r"grad_fn=<\w+>")
_NUMBER = re.compile(r"-?\d+\.\d*(?:e[-+]?\d+)?")  # with a fraction, as text
STATE = ("G_n", "G_v", "G_d", "G_x", "G_o")

transforms.warm()


class OutOfTime(BaseException):
    """A call took too long."""


class Incomparable(Exception):
    """Comparing what eager gives with itself raises an exception of the program's."""


@contextlib.contextmanager
def limit(seconds):
    """Raise OutOfTime in the block after this many seconds, and again each second, as a program may catch it."""

    def stop(signum, frame):
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclasses.dataclass
class Outcome:
    """``kind``: "same", "mismatch", or "invalid" for a program that is no test (it does not end in eager). ``why`` says
    it in words; ``captures`` are the records of the frames that were captured."""

    kind: str
    why: str = ""
    captures: list = dataclasses.field(default_factory=list)

    @property
    def breaks(self):
        return [b for c in self.captures for b in c]


def observe(fn, arguments, seconds):
    """-> (result, exception as (type, text, type of its context, type of its cause), output)."""
    seeded()
    out, result, error = io.StringIO(), None, None
    try:
        with contextlib.redirect_stdout(out), limit(seconds):
            result = fn(*arguments)
    except Exception as e:
        error = (type(e).__name__, str(e), type(e.__context__).__name__, type(e.__cause__).__name__)
    after = [random.random(), float(np.random.rand()), float(torch.rand(()))]
    return [result, after, *gradients(result, arguments)], error, out.getvalue()


def seeded():
    """Start the global generators of random numbers afresh."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def found_in(value, fits, seen, depth=0):
    """The objects in a value that fit, in containers and attributes, each once."""
    if id(value) in seen or depth > 4:
        return
    seen[id(value)] = value
    if isinstance(value, torch.Tensor):
        if fits(value):
            yield value
        return
    parts = (value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else
             vars(value).values() if type(value).__name__ in ("C", "D") else ())
    for part in list(parts):
        yield from found_in(part, fits, seen, depth + 1)


def gradients(result, arguments):
    """Of what a call gives, those of leaves among its arguments, or what asking for them raises; and what is left in
    their ``grad``."""
    with torch._C.DisableTorchFunction(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        leaves = list(found_in(arguments, lambda t: t.requires_grad and t.is_leaf, {}))
        wanted = list(found_in(result, lambda t: t.requires_grad and t.dtype.is_floating_point, {}))
        kept = [t.grad for t in leaves]
        if not leaves or not wanted:
            return kept, None
        try:
            total = sum((t * torch.linspace(0.5, 1.5, t.numel()).view(t.shape)).double().sum() for t in wanted)
            return kept, torch.autograd.grad(total, leaves, allow_unused=True)
        except Exception as e:
            return kept, (type(e).__name__, str(e))


def load(text, name, in_eager=True):
    """The namespace of a program's module. ``in_eager``: with Python for the operators of control flow."""
    sys.modules.setdefault(name, types.ModuleType(name))  # dataclasses looks for it
    namespace = {"__name__": name}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(text, f"<{name}>", "exec"), namespace)
    if in_eager:
        namespace.update({k: v for k, v in control.IN_EAGER.items() if k in namespace})
    return namespace


def run(text: str, backend: str = "eager", dynamic: bool | None = None) -> Outcome:
    """Run a program both ways. An internal failure of the compiler is a mismatch too."""
    before = switched_off()
    with control.forbid():
        outcome = _run(text, backend, dynamic)
    if switched_off() != before and gc.collect() >= 0 and switched_off() != before:  # it would show in other programs
        return Outcome("mismatch", "internal: PyTorch's dispatch keys are left switched off", outcome.captures)
    return outcome


def switched_off() -> str:
    """What PyTorch does not do in this thread now, such as the transforms of ``torch.func``."""
    return str(torch._C._dispatch_tls_local_exclude_set())


def _run(text: str, backend: str, dynamic: bool | None) -> Outcome:
    jit.reset()
    captures: list = []
    try:
        with limit(EAGER_SECONDS):
            eager, compiled = load(text, "program"), load(text, "program", in_eager=False)
            eager_calls, compiled_calls = eager["calls"](), compiled["calls"]()
    except (Exception, OutOfTime) as e:
        return Outcome("invalid", repr(e))
    if not (isinstance(eager.get("f"), types.FunctionType) and isinstance(eager_calls, list)
            and all(isinstance(c, tuple) for c in eager_calls)):
        return Outcome("invalid", "no function f, or no arguments for it")
    settings = dispatch.Settings(backends.BACKENDS[backend], False, dynamic,
                                 on_capture=lambda c: captures.append(list(c.breaks)))
    fn = dispatch.make_dispatcher(compiled["f"], settings)
    for i, (given, twin) in enumerate(zip(eager_calls, compiled_calls)):
        found = control.NoTest.raised
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                want = observe(eager["f"], given, EAGER_SECONDS)
            except (OutOfTime, MemoryError):
                return Outcome("invalid", "too slow in eager")
            except control.NoTest as e:
                return Outcome("invalid", f"cannot be compared: {e!r}")
            try:
                got = observe(fn, twin, COMPILED_SECONDS)
                near = eager.get("CLOSE", 1e-4 if backend == "jit" else 1e-6)
                why = differs(want, got, (given, *state(eager)), (twin, *state(compiled)), near)
                if why and gc.collect():  # while capturing, what the program drops may wait for a collection
                    why = differs(want, got, (given, *state(eager)), (twin, *state(compiled)), near)
            except OutOfTime:
                why = f"timeout: the compiled program takes more than {COMPILED_SECONDS} s"
            except control.NoTest as e:
                return Outcome("invalid", f"cannot be compared: {e!r}")
            except (RecursionError, Incomparable):
                return Outcome("invalid", "cannot be compared")
        if control.NoTest.raised > found:
            return Outcome("invalid", "cannot be compared: the program went on all the same")
        if want[1] and "recursion" in want[1][1]:
            return Outcome("invalid", "endless recursion")
        failed = [str(w.message) for w in told if issubclass(w.category, InternalFailure)]
        if failed:
            why = f"internal: {failed[0]}"
        if why and not why.startswith(("internal", "timeout")) and unsteady(text, i, near):
            return Outcome("invalid", "not the same twice in eager")
        if backend == "eager" and "through the graph a second time" in why:
            # There PyTorch's autograd differentiates the graph's operations one by one, and keeps what the program's
            # own operations do not keep; what may be walked twice is to be asked of the real backend.
            return _run(text, "jit", dynamic)
        if why:
            return Outcome("mismatch", f"call {i}: {why}", captures)
    return Outcome("same", "", captures)


def unsteady(text, last, near) -> bool:
    """Whether eager itself does not give the same in several runs up to a call, as a program that counts letters in the
    address of a function."""
    kept = []  # so that no address comes twice
    for _ in range(8):
        namespace = load(text, "program")
        calls = namespace["calls"]()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                seen = [observe(namespace["f"], given, EAGER_SECONDS) for given in calls[:last + 1]]
            except (OutOfTime, MemoryError, control.NoTest):
                return True
        kept.append((namespace, calls, seen))
        if len(kept) > 1:
            (first, first_calls, first_seen), n = kept[0], last
            try:
                if differs(first_seen[n], seen[n], (first_calls[n], *state(first)), (calls[n], *state(namespace)),
                           near):
                    return True
            except (RecursionError, Incomparable):
                return True
    return False


def one_text(difference, near) -> bool:
    """Whether a message "path: this in eager, that compiled" gives the same text twice."""
    this, _, that = difference.partition(": ")[2].removesuffix(" compiled").partition(" in eager, ")
    return alike(re.sub(r"[\\'\"]", "", this), re.sub(r"[\\'\"]", "", that), near)


def alike(this, that, near) -> bool:
    """Whether two texts are the same but for the last digits of numbers in them, which are roundings as elsewhere."""
    numbers = [list(map(float, _NUMBER.findall(text))) for text in (this, that)]
    return this == that or _NUMBER.sub("", this) == _NUMBER.sub("", that) and all(
        math.isclose(p, q, rel_tol=near, abs_tol=near) for p, q in zip(*numbers, strict=True))


def plain(observed) -> str:
    """What was raised and printed as text, without what is never the same."""
    return neutral(_ADDRESS.sub("", str(observed)))


def neutral(text) -> str:
    """``text`` without what is PyTorch's own affair."""
    return _NODE.sub("grad_fn=<>", _NO_SIZE.sub(r"\1", text))


def state(namespace):
    """What a program may have changed besides its arguments."""
    return [*map(namespace.get, STATE), getattr(namespace.get("C"), "made", None)]


def differs(want, got, given, twin, near) -> str:
    """What is not the same, in words; empty if all is."""
    if want[1] and got[1] and _FREE.search(got[1][1]) and _UNSET.search(want[1][1]):
        want, got = want[:1] + got[1:], got
    if plain(want[1:]) == plain(got[1:]):
        want, got = want[:1] + got[1:], got
    if want[1] != got[1]:
        return f"raised {want[1]} in eager, {got[1]} compiled"
    if not alike(want[2], got[2], near):
        return f"printed {want[2]!r} in eager, {got[2]!r} compiled"
    try:
        same((want[0], given), (got[0], twin), rtol=near, dense=near == GRADIENTS)
    except AssertionError as e:
        said = _FREE_TEXT.sub(
            r"UnboundLocalError(\"cannot access local variable \1 where it is not associated with a value", str(e))
        said = neutral(said)
        text = said != str(e) or ": '" in said or ': "' in said
        return "" if _ADDRESS.search(said) or text and one_text(said, near) else str(e)
    except RecursionError:
        raise
    except Exception as e:  # of a method of the program's
        try:
            same((want[0], given), (want[0], given))
        except Exception:
            raise Incomparable from e
        return f"comparing raises {e!r}"
    return ""

