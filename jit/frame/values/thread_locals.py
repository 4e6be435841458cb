"""Objects of ``threading.local``, whose attributes are others in each thread.

They are read as those of any object, from the dictionary that the present thread has, which the object makes, and fills
by ``__init__``, when a thread first asks for it. Guards and rewritten code ask the object, and so find those of the
thread that runs them; what one thread has says nothing of another.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ... import turns
from ...errors import Unsupported
from ...runtime import facts
from .. import source as src
from ..tables import wrapper
from .base import lookup
from .objects import ObjectValue
from .overlays import DELETED

if TYPE_CHECKING:
    from ..session import Session
    from .base import Value


class ThreadLocalValue(ObjectValue):
    """An object of a class that is, or is made from, ``threading.local``."""

    set_real, delete_real = threading.local.__setattr__, threading.local.__delattr__

    @staticmethod
    def check_attributes(cls: type) -> None:
        """Its own way is the one that is followed here."""

    @staticmethod
    def instance_dict(obj: object) -> dict[str, object]:
        return threading.local.__getattribute__(obj, "__dict__")

    def instance_attr(self, s: Session, name: str) -> Value | None:
        value = self.attrs.get(name)
        if value is not None or self.obj is None:
            return None if value is DELETED else value
        if self.source is None:
            raise Unsupported(f"attributes of a {self.cls.__qualname__} that is no argument or global",
                              kind="attribute")
        real = self.own_dict(s)
        if name not in real:
            s.guards.add(src.ThreadAttr(self.source, "__dict__"), facts.DictLacks(name))
            return None
        return s.wrap(real[name], src.ThreadAttr(self.source, name))

    def getset(self, s: Session, raw: object, name: str) -> Value:
        if name == "__dict__":
            raise Unsupported("the dictionary of a threading.local", kind="attribute")
        return super().getset(s, raw, name)

    def dict_names(self, s: Session) -> list[str]:
        raise Unsupported("the names in a threading.local", kind="attribute")


@wrapper(threading.local)
def wrap_thread_local(s: Session, obj: object, source: src.Source | None) -> ObjectValue:
    turns.only_in_call("an object of threading.local is read")
    own = lookup(type(obj), "__getattribute__")[1] is threading.local.__getattribute__
    return (ThreadLocalValue if own else ObjectValue)(type(obj), obj, source)
