"""The blocks of a rewritten function, in the order in which they run, and what may be done in each.

A call commits once. Before its *commit point* nothing is changed that was there before the call: what raises there has
done nothing, and the original function may be called instead. Behind it nothing raises by our own doing. Where the
plan changes something, the commit point is the plan's own, the last thing that ``COMPUTE`` does (``runtime``: kernels
and copies that give inputs their new values, then version counters); else it is before ``EFFECTS``. The emitter says
of each command what it does, and ``BlockError`` refuses what its block does not allow.
"""

from __future__ import annotations

import collections
import dataclasses
import dis
import types


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """
    Attributes:
        name: its heading in listings.
        changes: objects that were there before the call are changed in it.
        fails: what it calls may raise, or leave for the original function; it must not be behind the commit point.
    """

    name: str
    changes: bool = False
    fails: bool = False

    def __repr__(self) -> str:
        return f"<block {self.name}>"


# Objects of the program that other blocks need, the numbers of the plan, and checks of guesses.
ARGUMENTS = Block("arguments", fails=True)
# The call of the plan, which leaves its results on the stack.
COMPUTE = Block("compute", fails=True)
# These results, one by one.
RESULTS = Block("results")
# Results whose history is another than the plan gives them.
HISTORY = Block("history")
# What the plan leaves undone on inputs that it changes: copies that autograd records, then version counters.
WRITE_BACK = Block("write back", changes=True)
# Results that are made from other results, by PyTorch.
DERIVE = Block("derive")
# Calls on results that need their data, such as ``item()``.
READ_BACK = Block("read back", fails=True)
# The call of the original function where an assumption does not hold.
ASSUMPTION = Block("assumption", fails=True)
# What the program does to other objects than tensors, in its order.
EFFECTS = Block("effects", changes=True)
# What is returned, or, at a break, the live values: loaded, or made anew.
REBUILD = Block("rebuild")

ORDER = (ARGUMENTS, COMPUTE, RESULTS, HISTORY, WRITE_BACK, DERIVE, READ_BACK, ASSUMPTION, EFFECTS, REBUILD)

# Headings of what follows: the end of the function, or a break and the ways that go on from it; and the handler of what
# COMPUTE raises.
RETURN, LET_GO, BREAK, RESUME, FAILED = "return", "let go", "break", "resume", "failed"


def before_commit(repeatable: bool) -> tuple[Block, ...]:
    """The blocks before the commit point. ``repeatable``: running the plan twice is as running it once."""
    return ORDER[:ORDER.index(EFFECTS if repeatable else RESULTS)]


class BlockError(AssertionError):
    """A command in a block that does not allow it: a bug of the emitter's."""


_CHANGING = """add append appendleft clear discard extend extendleft insert pop popitem popleft remove reverse rotate
setdefault sort update move_to_end difference_update intersection_update symmetric_difference_update __delitem__
__iadd__ __imul__ __ior__ __setitem__""".split()
# By identity: functions in C that change their first argument.
_CHANGERS = frozenset(id(vars(cls)[name]) for cls in (list, dict, set, bytearray, collections.deque,
                                                      collections.OrderedDict)
                      for name in _CHANGING if name in vars(cls)) | frozenset(
    map(id, (setattr, delattr, vars(object)["__setattr__"], vars(object)["__delattr__"], vars(type)["__setattr__"])))
# Commands that do.
CHANGES = frozenset(("store_attr", "delete_attr", "store_subscr", "delete_subscr", "store_global", "store_deref"))


def changes(fn: object) -> bool:
    """Whether a function in C is known to change its first argument."""
    return id(fn) in _CHANGERS


def check(commands: dict[Block, list[tuple]], arguments: list[str], failing: set[Block],
          before: tuple[Block, ...]) -> None:
    """Raises BlockError where a block before the commit point (``before``) changes something, one behind it may fail,
    or where a local is read before it is stored. ``failing``: blocks that may fail."""
    for block in ORDER:
        if block in before and block.changes and commands[block]:
            raise BlockError(f"the block {block.name!r} changes something before the commit point")
        if block not in before and block in failing:
            raise BlockError(f"the block {block.name!r} may fail behind the commit point")
    stored = set(arguments)
    for block in ORDER:
        for command, args in commands[block]:
            if command == "store_fast":
                stored.add(args[0])
            elif command == "load_fast" and args[0] not in stored:
                raise BlockError(f"{args[0]} is read in the block {block.name!r} before it is stored")


def rewriting(code: types.CodeType, function: types.FunctionType) -> str:
    """The bytecode of a function, and of what it is rewritten to, as text."""
    return f"original {code.co_qualname}:\n{dis.Bytecode(code).dis()}\nrewritten:\n{listing(function)}"


def listing(function: types.FunctionType) -> str:
    """The bytecode of a rewritten function under the names of its blocks."""
    starts, lines = dict(function._jit_blocks), []
    for instr in dis.get_instructions(function):
        if instr.offset in starts:
            lines.append(f"{starts[instr.offset]}:")
        if instr.opname != "CACHE":
            mark = ">>" if instr.is_jump_target else "  "
            argument = instr.argrepr or ("" if instr.arg is None else instr.arg)
            lines.append(f"  {mark} {instr.offset:4} {instr.opname:28} {argument}".rstrip())
    return "\n".join(lines)
