"""``pickle.dumps`` of a dict of plain constants, as libraries make keys of caches from keyword arguments."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

from ...errors import Unsupported
from ..tables import on_call
from ..values.constant import Constant

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value

_PLAIN = (type(None), bool, int, float, str)


@on_call(pickle.dumps)
def dumps(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Constant:
    """Texts that occur twice are left to Python: the bytes tell whether they are one object."""
    if len(args) == 1 and not kwargs and args[0].builtin is dict and args[0].pytype(s) is dict:
        pairs = [(key, value) for key, value in args[0].load(s).values()]
        if all(v.symbolic is not None or type(v) is Constant and type(v.value) in _PLAIN
               for pair in pairs for v in pair):
            made = {key.const(s): value.const(s) for key, value in pairs}
            texts = [v for pair in made.items() for v in pair if type(v) is str]
            if len(texts) == len(set(texts)):
                return Constant(pickle.dumps(made))
    raise Unsupported("call of pickle.dumps, implemented in C and not known to the compiler", kind="c-call")
