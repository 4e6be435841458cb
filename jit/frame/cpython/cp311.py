"""CPython 3.11."""

from __future__ import annotations

from .row import Row, Steps, Tables


def _global(t: Tables, arg: int) -> Steps:
    load = ("LOAD_GLOBAL", t.names[arg >> 1])
    return (("PUSH_NULL", None), load) if arg & 1 else (load,)


def _call(count: int, kwnames: tuple) -> Steps:
    names = (("KW_NAMES", kwnames),) if kwnames else ()
    return (*names, ("PRECALL", count), ("CALL", count))


ROW = Row(
    version=(3, 11),
    null_first=True,
    compare=0,
    masks=False,
    reads={"LOAD_GLOBAL": _global},
    folded=frozenset({"CACHE", "PRECALL"}),
    no_end_send=True,
    pops_loop=None,
    iterator_slots=1,
    paired={},
    exit_slots=1,
    always_kwargs=False,
    resumes=3,
    has_docstring=0,
    call=_call,
    writes={
        "END_FOR": lambda arg: (),
        "END_SEND": lambda arg: (),
        "BINARY_SLICE": lambda arg: (("BUILD_SLICE", 2), ("BINARY_SUBSCR", None)),
        "STORE_SLICE": lambda arg: (("BUILD_SLICE", 2), ("STORE_SUBSCR", None)),
        "LOAD_FAST_CHECK": lambda arg: (("LOAD_FAST", arg),),
        "LOAD_FAST_AND_CLEAR": lambda arg: (("LOAD_FAST", arg), ("DELETE_FAST", arg)),  # of a bound variable
    },
    directed=True,
    tests=None,
    jump_or_pop=True,
    end_for=None,
    yields=lambda arg: 0,
    throws_into_delegates=True,
    sorts_by_truth=False,
    subset_looks_up=False,
)
