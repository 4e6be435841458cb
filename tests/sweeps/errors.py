"""``python -m tests.sweeps.errors``: does a compiled call raise wherever eager does, with the same exception?

PyTorch's databases of operators (OpInfo) and modules (ModuleInfo) list inputs that each of them refuses. Every such
call is made by a small compiled function, on the default backend: with its result used and unused, with sizes that are
symbols from the start, and after calls that succeeded.
"""

import argparse
import re
import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from sweeps import workers  # noqa: E402
from sweeps.database import dtype_of, mapped, operators, samples  # noqa: E402

CALLS = ("used", "unused", "symbolic", "symbolic unused", "later", "later unused")


def copied(v):
    """An argument that a call may change."""
    return mapped(lambda t: t.detach().clone().requires_grad_(t.requires_grad) if t.layout is torch.strided
                  and t.device.type == "cpu" else t, v)


def refusal(fn, args, kwargs):
    """The exception that a call raises, or None."""
    torch.manual_seed(0)
    args, kwargs = copied(list(args)), copied(dict(kwargs))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fn(torch.ones(2), *args, **kwargs)
    except Exception as error:
        return error
    return None


def program(op, used: bool):
    """A small function that calls ``op``."""
    if used:
        return lambda x, *args, **kwargs: (op(*args, **kwargs), x + 1)

    def unused(x, *args, **kwargs):
        op(*args, **kwargs)
        return x + 1

    return unused


def described(error) -> str:
    return "nothing" if error is None else f"{type(error).__name__}: {error}".replace("\n", " ")[:200]


def check(op, refused, accepted=(), calls=CALLS, texts: bool = False) -> list:
    """What a compiled ``op`` raises that is of another type than eager's, or has another text where ``texts`` are
    looked at."""
    import jit

    found = []
    for number, (args, kwargs) in enumerate(refused):
        expected = refusal(program(op, True), args, kwargs)
        for call in calls if expected is not None else ():
            jit.reset()
            compiled = jit.compile(program(op, "unused" not in call), dynamic=True if "symbolic" in call else None)
            for good in accepted if "later" in call else ():
                refusal(compiled, *good)
            got = refusal(compiled, args, kwargs)
            if type(got) is not type(expected) or texts and str(got) != str(expected):
                found.append(f"sample {number}, {call}: {described(expected)} in eager, {described(got)} compiled")
    return found


def of_operator(info):
    """(operator, refused arguments, accepted ones)."""
    dtype = dtype_of(info)
    refused = [((e.sample_input.input, *e.sample_input.args), e.sample_input.kwargs) for e in info.error_inputs("cpu")]
    return info.op, refused, samples(info, dtype, False, 3) if dtype is not None else []


def of_module(info):
    """The same for a module: the operator calls it, or its class where that raises already."""
    from torch.testing._internal.common_modules import ModuleErrorEnum

    refused = []
    for training in (True, False):
        for e in info.module_error_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False,
                                               training=training):
            made, given = e.module_error_input.constructor_input, e.module_error_input.forward_input
            if e.error_on is ModuleErrorEnum.FORWARD_ERROR:
                refused.append(((info.module_cls(*made.args, **made.kwargs).train(training), *given.args),
                                given.kwargs))
            else:
                refused.append(((info.module_cls, *made.args), made.kwargs))
    return lambda module, *args, **kwargs: module(*args, **kwargs), refused, []


def everything() -> dict:
    """Name -> function that gives the arguments of ``check``."""
    from torch.testing._internal.common_modules import module_db

    found = {name: lambda op=op: of_operator(op)
             for name, op in operators().items() if op.error_inputs_func is not None}
    found.update({f"nn.{m.name}": lambda m=m: of_module(m)
                  for m in module_db if m.module_error_inputs_func is not None})
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", help="regular expression over the names of operators and modules")
    p.add_argument("--calls", default=",".join(CALLS), help="which calls, separated by commas (all)")
    p.add_argument("--texts", action="store_true", help="the text has to be the same too")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--timeout", type=float, default=300, help="seconds for one operator")
    given = p.parse_args()
    import jit

    jit.runtime.native()
    chosen = {name: make for name, make in everything().items() if not given.only or re.search(given.only, name)}

    def report(name, findings):
        for text in findings:
            print(f"{name}: {text}", flush=True)

    def checked(name):
        torch.set_num_threads(1)
        return check(*chosen[name](), given.calls.split(","), given.texts)

    done = workers.run(list(chosen), checked, given.jobs, given.timeout, report)
    wrong = sum(bool(v) for v in done.values())
    print(f"{len(done)} operators and modules, {wrong} raise something else than eager")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
