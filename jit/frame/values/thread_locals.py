"""``threading.local``: an object with other attributes in each thread, which are read anew at each call."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ...errors import Unsupported
from .. import source as src
from ..tables import wrapper
from .base import Value
from .constant import Constant
from .objects import DELETED, ObjectValue

if TYPE_CHECKING:
    from ..session import Session
    from ..source import Source


class ThreadLocal(ObjectValue):
    """``attrs``: what the program has set."""

    def plain_getattr(self, s: Session, name: str) -> Value:
        self.pytype(s)
        value = self.attrs.get(name)
        if value is DELETED:
            self.no_attribute(s, name)
        if value is not None:
            return value
        found, raw, _ = s.class_lookup(self.cls, name)
        if found:
            return self.bind(s, raw, name)
        held = vars(self.obj)
        if name not in held or self.source is None:
            raise Unsupported("an attribute that a _thread._local does not have", kind="attribute")
        return s.wrap(held[name], src.GetAttr(self.source, name, True))

    def plain_setattr(self, s: Session, name: str, value: Value) -> None:
        self.pytype(s)
        if s.class_lookup(self.cls, name)[0]:
            raise Unsupported(f"setting {name!r} of a _thread._local, which its class has", kind="attribute")
        s.heap.touch(self)
        s.set_entry(self.attrs, name, value)
        s.effect(setattr, [self, Constant(name), value])

    def plain_delattr(self, s: Session, name: str) -> None:
        self.plain_getattr(s, name)
        s.heap.touch(self)
        s.set_entry(self.attrs, name, DELETED)
        s.effect(delattr, [self, Constant(name)])


@wrapper(threading.local)
def wrap_local(s: Session, obj: threading.local, source: Source | None) -> Value:
    return ThreadLocal(type(obj), obj, source)
