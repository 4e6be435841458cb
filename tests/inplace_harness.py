"""What a program does to tensors that were there before, seen from outside: values, layout, history, versions, memory
and gradients."""

import torch


def tensors(value, found=None):
    """All tensors in nested lists, tuples and dicts, in order."""
    found = [] if found is None else found
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for v in value:
            tensors(v, found)
    elif isinstance(value, dict):
        tensors(list(value.values()), found)
    elif hasattr(value, "__dict__"):
        tensors(list(vars(value).values()), found)
    return found


def history(t):
    """(requires_grad, is_leaf, whether there is no grad_fn); a view whose history cannot be told says so."""
    try:
        return t.requires_grad, t.is_leaf, t.grad_fn is None
    except RuntimeError as error:
        return str(error)[:40]


def shape_of(value):
    if isinstance(value, (list, tuple)):
        return [shape_of(v) for v in value]
    return "tensor" if isinstance(value, torch.Tensor) else repr(value)


def observe(fn, make, seed=0):
    """The record of ``fn(*make())``: comparable with ``==`` but for the numbers, which ``same_record`` compares.

    ``make()`` gives (arguments, other tensors to look at).
    """
    torch.manual_seed(seed)
    args, watched = make()
    before = tensors([args, watched])
    versions = [t._version for t in before]
    leaves = [t for t in before if t.is_leaf and t.requires_grad]
    record = {}
    try:
        result = fn(*args)
    except Exception as error:
        result, record["error"] = (), (type(error).__name__, str(error))
    seen = before + tensors(result)
    record["grad mode"] = torch.is_grad_enabled()
    record["structure"] = shape_of(result)
    record["identity"] = [next(k for k, s in enumerate(seen) if s is t) for t in seen]
    record["memory"] = [next(k for k, s in enumerate(seen)
                             if s.untyped_storage().data_ptr() == t.untyped_storage().data_ptr()) if t.numel() else None
                        for t in seen]
    shared = [record["memory"].count(m) > 1 for m in record["memory"]]
    record["layout"] = [(t.dtype, tuple(t.shape), t.stride(),
                         t.storage_offset() if s else None) for t, s in zip(seen, shared)]
    record["history"] = [history(t) for t in seen]
    record["bumped"] = [t._version > v for t, v in zip(before, versions)]
    record["values"] = [t.detach().clone() for t in seen]
    # Which of the tensors share a version counter.
    links = []
    for t in seen:
        old = [s._version for s in seen]
        torch.autograd.graph.increment_version(t)
        links.append([s._version > v for s, v in zip(seen, old)])
        torch._C._autograd._unsafe_set_version_counter((t,), (t._version - 1,))
    record["counters"] = links
    record["old gradients"] = [None if t.grad is None else t.grad.clone() for t in leaves]
    total = [(t.double() if not t.is_complex() else t.abs().double()).mul(1 + k / 7).sum()
             for k, t in enumerate(seen) if history(t)[::2] == (True, False)]
    record["gradients"] = []
    if total:
        try:
            sum(total).backward()
        except RuntimeError as error:
            record["backward error"] = str(error)[:60]
        record["gradients"] = [None if t.grad is None else t.grad.clone() for t in leaves]
    return record


def close(a, b, rtol):
    if a is None or b is None:
        return a is b
    return torch.allclose(a.double() if not a.is_complex() else a, b.double() if not b.is_complex() else b, rtol, rtol,
                          equal_nan=True)


def same_record(eager, compiled, rtol=1e-5):
    """Raises AssertionError saying what differs."""
    assert eager.keys() == compiled.keys(), (f"{eager.get('error')} {eager.get('backward error')} in eager, "
                                             f"{compiled.get('error')} {compiled.get('backward error')} compiled")
    for name, value in eager.items():
        other = compiled[name]
        if name in ("values", "gradients", "old gradients"):
            fine = len(value) == len(other) and all(close(a, b, rtol) for a, b in zip(value, other))
        else:
            fine = value == other
        assert fine, f"{name}: {value} in eager, {other} compiled"


def check(fn, make, compiled, calls=2):
    """``fn`` against ``compiled`` on what ``make`` gives, more than once."""
    for seed in range(calls):
        same_record(observe(fn, make, seed), observe(compiled, make, seed))
