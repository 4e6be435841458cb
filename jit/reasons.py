"""The kinds of graph breaks: what each means and what to do about it. ``docs/graph_breaks.md`` is this table with
examples.

Every ``Unsupported`` names one of these kinds. Where it is raised without a hint of its own the kind's hint is given.
"""

from __future__ import annotations

from typing import NamedTuple


class Reason(NamedTuple):
    """``meaning``: one sentence. ``hint``: what the user can do about it. ``plain``: the texts of its breaks are
    sentences that say as much as ``meaning`` does."""

    meaning: str
    hint: str
    plain: bool = False


def that_is(kind: str) -> str:
    """What a break of this kind means, to follow a text that only names a thing; else ""."""
    meaning = KINDS[kind].meaning.replace("`", "").rstrip(".")
    return "" if KINDS[kind].plain else meaning[0].lower() + meaning[1:]


_OUTSIDE = "do it outside the compiled function"

KINDS = {
    # asked for
    "graph-break": Reason("The program asked for a break with `jit.graph_break()`.",
                          "remove the call of jit.graph_break()", plain=True),
    "disabled": Reason("A function that is marked with `jit.disable`, or compiled with `torch.compile`, is called.",
                       "take the mark off, or call the function before or after the compiled one, if the break "
                       "costs too much", plain=True),
    "debugger": Reason("The program stops in a debugger, by `breakpoint()` or `pdb.set_trace()`. The whole function "
                       "runs in eager, so that its lines are stepped through and its variables are there.",
                       "remove the call of breakpoint()", plain=True),
    # the values of tensors
    "data-dependent-branch": Reason("Which way the program goes depends on the values of a tensor.",
                                    "have both ways set the same variables to tensors of the same types, or use "
                                    "torch.where", plain=True),
    "data-dependent-value": Reason("Python reads the values of a tensor.",
                                   "keep the computation in tensors (torch.where chooses between two), or return the "
                                   "tensor and do this outside the compiled function",
                                   plain=True),
    "data-dependent-shape": Reason("The size of a result depends on the values of a tensor.",
                                   "use a form whose size is known, or keep it outside the compiled function",
                                   plain=True),
    # tensors
    "tensor-subclass": Reason("A tensor of a subclass whose class has a `__torch_dispatch__`, in a way that has no "
                              "rule: it has data of its own, or no class takes the call.",
                              "compile the function that works on plain tensors"),
    "tensor-layout": Reason("A sparse, quantized or nested tensor.",
                            "convert it to a dense tensor with to_dense() or dequantize() first"),
    "lazy-conjugate": Reason("A tensor whose conjugate or negative bit is set: its values are the negative, or the "
                             "conjugate, of what lies in memory.",
                             "call resolve_conj() or resolve_neg() first", plain=True),
    "device": Reason("A tensor on a device that is neither a CPU nor a CUDA GPU, or tensors on several devices in one "
                     "operation.",
                     "move all tensors to one CPU or CUDA device first", plain=True),
    "functorch": Reason("A transform of `torch.func` does what it has no rule for: random numbers of attention and "
                        "recurrent layers inside a map, changes of tensors from outside, dual numbers under "
                        "`torch.no_grad`, library calls for more than 64 slices; or the compiled function is called "
                        "inside one; or a loop of `torch._higher_order_ops` has more than 256 steps.",
                        "compile the function that calls the transform; clone() what is changed", plain=True),
    "torch-mode": Reason("A mode that sees every operation (`TorchDispatchMode`, `TorchFunctionMode`) is active "
                         "around the call, or a `TorchDispatchMode` is entered inside.",
                         "compile without it", plain=True),
    "large-constant": Reason("A tensor of more than 64 elements is made from Python numbers.",
                             "make it once outside the compiled function", plain=True),
    "tensor-attribute": Reason("An attribute or method of a tensor that shows its memory or how it was made.",
                               _OUTSIDE),
    "autograd": Reason("A change or a question about how gradients are recorded.",
                       "call it outside the compiled function"),
    "gradient": Reason("Gradients are needed through a step for which they cannot be captured.",
                       "do this step outside the compiled function, or call it under torch.no_grad()"),
    "lazy-module": Reason("A lazy module (`LazyLinear`, ...) whose parameters are made by its first call.",
                          "nothing needs to be done: the calls after the first are captured"),
    # operations of PyTorch
    "unknown-function": Reason("A function of PyTorch that is not known, or is not known with these arguments.",
                               "check the call against the documentation, or " + _OUTSIDE),
    "torch-argument": Reason(
        "A function of PyTorch is given an object that is not a tensor, a number or a container of these.",
        "give it plain values, or " + _OUTSIDE),
    "foreign-operator": Reason("An operator that is not PyTorch's own is called, which may do more than its schema "
                               "says.",
                               "nothing needs to be done: it is called as in eager", plain=True),
    "triton-kernel": Reason("A Triton kernel of the program's own is launched in a way that is not known.",
                            "nothing needs to be done: it is launched as in eager", plain=True),
    "collective": Reason("A collective of `torch.distributed` in a form that is no step of a graph.",
                         "nothing needs to be done: it is called as in eager", plain=True),
    "sharded-module": Reason("A module is called that FSDP shards (`fully_shard`): its hooks run in Python, and its "
                             "forward is a graph of its own.",
                             "nothing needs to be done"),
    "no-shape-rule": Reason("The shape of an operator's result is not known before it runs.", _OUTSIDE),
    "mutating-op": Reason("An operation changes a tensor in a way that the graph cannot express.",
                          "use the form that returns a new tensor", plain=True),
    "out-argument": Reason("An `out=` that does not fit or is not supported for this operation.",
                           "use the result instead of out=, or give out= the result's shape"),
    "aliased-mutation": Reason("A tensor is changed that shares memory with another one.", "clone() one of them",
                               plain=True),
    "overlapping-memory": Reason("A view whose elements share memory, or one at offsets that are not known.",
                                 "clone() it first, or use ordinary views"),
    "tensor-select": Reason("A view that a 0-dim tensor selected is a result, or is written to.",
                            "select with an int, or clone() the selection", plain=True),
    "autocast": Reason("An operation under `torch.autocast`.",
                       "cast explicitly, or leave autocast outside of the compiled function"),
    "global-state": Reason("A change of PyTorch's global settings, or of a random state in a form that no graph has.",
                           "set it outside the compiled function", plain=True),
    "numpy": Reason("A function or a value of NumPy that has no form in PyTorch.", "use torch, or " + _OUTSIDE),
    "kernel": Reason("No kernel can be made for a part of the graph.", "run this part in eager, with jit.disable"),
    # calls
    "c-call": Reason("A function implemented in C that the compiler does not know.",
                     "call it outside the compiled function, or on constants", plain=True),
    "call": Reason("An object that cannot be called here is called.", _OUTSIDE),
    "forbidden-call": Reason("A function whose effects reach beyond the program: files, threads, random state, "
                             "PyTorch's own compiler.", _OUTSIDE, plain=True),
    "cached-function": Reason("A function with a cache (`functools.lru_cache`) is called that has no entry for these "
                              "arguments and does other things besides, or that is given "
                              "tensors or new objects.", "nothing needs to be done where later calls find an entry; "
                                                         "else call it outside the compiled function", plain=True),
    "argument-error": Reason("The arguments of a call do not fit the function; eager code raises the error.",
                             "check the call"),
    "instantiate": Reason("An object of a class implemented in C is made.",
                          "make the object outside the compiled function"),
    "logging": Reason("A record is logged with what its place in the program decides, such as an exception.",
                      "log outside the compiled function", plain=True),
    "warning": Reason("A warning is given.", "warn outside the compiled function", plain=True),
    "import": Reason("A module is imported that is not loaded yet.", "import it at the top of the file", plain=True),
    "frame-inspection": Reason("The program looks at the interpreter's frames.", _OUTSIDE, plain=True),
    "singledispatch": Reason(
        "A `functools.singledispatch` function over abstract classes, or a `singledispatchmethod`.",
        "call the implementation directly, or use isinstance", plain=True),
    "too-deep": Reason("Calls are nested too deeply.", "use a loop instead of recursion", plain=True),
    "long-loop": Reason("A loop of Python is too long to be unrolled.",
                        "use a tensor operation over a dimension, or keep the loop outside the compiled function",
                        plain=True),
    # Python objects
    "attribute": Reason("An attribute that cannot be read, set or deleted here.",
                        "read or set it outside the compiled function"),
    "descriptor": Reason("An attribute is a descriptor that is implemented in C.",
                         "call the method behind it, or use a property"),
    "class-attribute": Reason("An attribute of a class is changed.",
                              "change the class outside the compiled function, or use an attribute of the instance",
                              plain=True),
    "class-statement": Reason("A class is made that has a metaclass, keyword arguments, or a base with "
                              "`__init_subclass__`.", "define the class outside the compiled function"),
    "super": Reason("`super()` used in a way that is not known.",
                    "call the method of the base class by the name of the class"),
    "special-method": Reason("A built-in function or statement needs a special method that this object does not "
                             "have, or that is not known.", _OUTSIDE),
    "operator": Reason("An operator on these two types.", "convert the operands first"),
    "format": Reason("The string form of an object that is not a constant.",
                     "make the text outside the compiled function"),
    "not-constant": Reason("A value that is known only at run time is needed as a plain Python value.",
                           "keep its values few, or make it a tensor", plain=True),
    "identity": Reason("The identity of an object made while capturing is used as a number.", "compare with `is`",
                       plain=True),
    "unhashable": Reason("A key of a dict or an element of a set whose hash is not known before run time.",
                         "use a str, a number or a tuple of these as key"),
    "cell": Reason("A variable of an enclosing function that is unset, or that is deleted.",
                   "assign the variable before the call", plain=True),
    "iterate": Reason("Iteration over an object that cannot be unrolled.", "make a list of it first"),
    "opaque-container": Reason("The contents of a container or iterator from outside cannot be guarded.",
                               "pass a list, tuple or dict"),
    "container-length": Reason("A container whose length is different at every call is read as a whole.",
                               "append to it only, or pass what is needed of it", plain=True),
    "iterator-position": Reason("The position of an iterator is different at every call.",
                                "mend the break inside the loop, if there is one; of an iterator from outside, pass "
                                "what it gives", plain=True),
    "iterator-escapes": Reason("A generator or iterator is in the midst of its work where the captured region ends.",
                               "use it up before the break, or make a list of it", plain=True),
    "rebuild": Reason("An object cannot be made again after the captured region.",
                      "return or store plain containers and objects"),
    "finalizer": Reason("A variable lets go of an object whose class has a `__del__`.",
                        "let it go after the call, or close the object instead", plain=True),
    "opcode": Reason("An instruction or statement of Python that is not supported.",
                     "move the statement to a function outside the compiled one"),
    # whole functions
    "raises": Reason("The program raises an exception; eager code raises it, with its traceback.",
                     "nothing needs to be done if the exception is wanted", plain=True),
    "generator-target": Reason("The compiled function is an asynchronous generator, or steps a generator that has "
                               "finished.", "compile what it calls", plain=True),
    "async": Reason("An asynchronous generator is called.", "iterate over it outside the compiled function",
                    plain=True),
    "not-resumable": Reason("A break at a place from which the function cannot go on: the function runs in eager.",
                            "avoid the break that is recorded before this one", plain=True),
    "python-version": Reason("This version of Python is not supported.", "use Python 3.11 to 3.15", plain=True),
    "internal": Reason("The compiler failed on this step.",
                       "report it with the text of the error; jit.disable on the function avoids it", plain=True),
}
