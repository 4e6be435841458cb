"""Programs with NumPy arrays, compiled and in eager: results are compared by type, dtype, strides, values and by what
they share memory with, and so are the arguments afterwards."""

import copy
import warnings

import numpy as np
import torch

import jit

TOLERANCES = {np.dtype(np.float16): 5e-3, np.dtype(np.float32): 2e-5, np.dtype(np.complex64): 2e-5}


def flat(tree):
    """The leaves of nested containers, in order."""
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in flat(tree[key])]
    if isinstance(tree, (list, tuple)):
        return [leaf for item in tree for leaf in flat(item)]
    return [tree]


def same(expected, found):
    """Raise AssertionError where two results differ."""
    assert type(found) is type(expected), (type(expected), type(found))
    if isinstance(expected, dict):
        assert list(expected) == list(found)
        for key in expected:
            same(expected[key], found[key])
    elif isinstance(expected, (list, tuple)):
        assert len(expected) == len(found)
        for a, b in zip(expected, found):
            same(a, b)
    elif isinstance(expected, torch.Tensor):
        assert expected.requires_grad == found.requires_grad
        torch.testing.assert_close(found, expected, equal_nan=True)
        assert expected.numel() == 0 or found.stride() == expected.stride(), (expected.stride(), found.stride())
    elif isinstance(expected, (np.ndarray, np.generic)):
        assert found.dtype == expected.dtype, (expected.dtype, found.dtype)
        assert found.shape == expected.shape, (expected.shape, found.shape)
        if isinstance(expected, np.ndarray):
            assert found.flags.writeable == expected.flags.writeable
            steps = [[s for s, n in zip(a.strides, a.shape) if n > 1] for a in (expected, found)]
            assert not expected.size or steps[0] == steps[1], (expected.shape, expected.strides, found.strides)
        tolerance = TOLERANCES.get(expected.dtype, 1e-6)
        if expected.dtype.kind in "fc":
            np.testing.assert_allclose(found, expected, tolerance, tolerance)
        else:
            np.testing.assert_array_equal(found, expected)
    elif isinstance(expected, float):
        np.testing.assert_allclose(found, expected, 1e-5, 1e-6)
    else:
        assert found == expected


def memory(value):
    if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dtype is not torch.bfloat16:
        return value.detach().numpy()
    return value if isinstance(value, np.ndarray) else None


def sharing(results, arguments):
    """Which of the arrays and tensors have memory in common."""
    arrays = [memory(v) for v in (*flat(results), *flat(arguments))]
    return [(i, j) for i, a in enumerate(arrays) for j, b in enumerate(arrays)
            if i < j and a is not None and b is not None and np.may_share_memory(a, b)]


def outcome(fn, arguments):
    arguments = copy.deepcopy(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = fn(*arguments)
        except Exception as error:  # compared by type
            return type(error), arguments, []
    return result, arguments, sharing(result, arguments)


def check(fn, *arguments, breaks=0, calls=2):
    """Compare a program with itself in eager, at each of several calls. ``breaks``: how many there are; None: any."""
    expected, changed, shared = outcome(fn, arguments)
    compiled = jit.compile(fn, fullgraph=breaks == 0 and not isinstance(expected, type))
    for _ in range(calls):
        found, left, common = outcome(compiled, arguments)
        same(expected, found)
        for a, b in zip(changed, left):
            if isinstance(a, (np.ndarray, torch.Tensor, list, tuple, dict)):
                same(a, b)
        assert shared == common, (shared, common)
    if breaks:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert jit.explain(fn)(*copy.deepcopy(arguments)).graph_break_count == breaks
    return compiled
