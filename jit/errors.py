"""Every error and control-flow signal that crosses a room boundary."""

from __future__ import annotations

from .reasons import KINDS, that_is


class JitError(RuntimeError):
    """Base of all errors that the compiler itself raises."""


class Unsupported(JitError):
    """A step that cannot be captured or compiled.

    Args:
        why: one sentence saying what is not supported.
        hint: what the user can do about it; the hint of the kind where it is left out.
        where: (file, line, function) of the user's code, filled in by the frame room when it is not known here.
        kind: a stable identifier of the reason, such as ``"data-dependent-branch"``: a key of ``jit.reasons.KINDS``.
    """

    def __init__(self, why: str, hint: str = "", where: tuple | None = None, *, kind: str) -> None:
        super().__init__(why)
        self.why, self.hint, self.where, self.kind = why, hint or KINDS[kind].hint, where, kind
        # (file, line, function) of the program's own line, where ``where`` is in a library that it calls.
        self.user: tuple | None = None
        # As ``where``, of the step that made the value which this is about, where that is another one.
        self.origin: tuple | None = None
        # Of kind "internal": whether the user has been told of it; ``cause`` is what a rule of ours has raised.
        self.told = False
        self.cause: BaseException | None = None
        # The frames that were being executed, the outermost first, as far as each can be resumed.
        self.frames: list = []

    @property
    def said(self) -> str:
        """``why``, and where the value comes from that it is about."""
        if self.origin is None or self.where is None or self.origin[:2] == self.where[:2]:
            return self.why
        return f"{self.why} (the value comes from line {self.origin[1]}" + (
            f" of {self.origin[0]}" if self.origin[0] != self.where[0] else "") + ")"

    def __str__(self) -> str:
        text = self.said
        if self.where:
            text += f"\n  at {self.where[0]}:{self.where[1]} in {self.where[2]}"
        if self.user:
            text += f"\n  called from {self.user[0]}:{self.user[1]} in {self.user[2]}"
        if meaning := that_is(self.kind):
            text += f"\n  that is: {meaning}"
        if self.hint:
            text += f"\n  hint: {self.hint}"
        return text


class NeedsEager(Unsupported):
    """The whole call has to run in eager (gradients wanted, for example); nothing captured may be kept."""

    @classmethod
    def of(cls, error: Unsupported) -> NeedsEager:
        """The same for the whole call."""
        made = cls(error.why, error.hint, error.where, kind=error.kind)
        made.user, made.origin = error.user, error.origin
        return made


class EagerRaises(JitError):
    """An operation raises in eager too: ``error`` is the exception that eager code would see.

    ``bases``: the memory of tensors that it raises for because of what they are to autograd.
    """

    def __init__(self, error: BaseException, bases: tuple = ()) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error, self.bases = error, bases


class RecompileError(JitError):
    """A function would be compiled again, or at all, where that was asked not to happen; the message says which fact
    differs."""


class CompileError(JitError):
    """A generated kernel or the native runtime failed to build; the message names the tool, its output and a cure."""


class NoCompiler(CompileError):
    """There is no C++ compiler on this machine; the message says what works without."""


class BackendError(JitError):
    """A backend of the user's has raised, or gave what is no result of the graph; the message names the backend."""


class PassError(JitError):
    """A pass of the user's has raised, or left a graph that is none; the message names the pass."""


class LoadError(JitError):
    """What was saved cannot be used here, or nothing could be saved; the message says why."""


class GuardError(JitError):
    """A guard cannot be expressed or was false for the very inputs it was made from."""
