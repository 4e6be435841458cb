"""Functions made in a compiled function that reach themselves through their own cells, as recursive ones do."""

import pytest
import torch

import jit


def recursive(x):
    def f():
        return f
    return x + 1, f


def counted(x, n=3):
    def power(k):
        return 1 if k == 0 else n * power(k - 1)
    return x * power(2), power


def mutual(x):
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)
    return x - 1, even, odd


def in_list(x):
    def f(k):
        return fs[k]
    fs = [f, len, x * 2]
    return x + 1, f


def in_dict_twice(x):
    def f():
        return table

    def g():
        return table["f"]
    table = {"f": f, "g": g, "x": x}
    return f, g


def class_beside(x):
    class Node:
        def make(self):
            return Node, f

    def f():
        return Node
    return x + 2, f, Node


def check_recursive(r):
    assert r[1]() is r[1]


def check_counted(r):
    assert r[1](4) == 81


def check_mutual(r):
    assert r[1](4) and not r[1](3) and r[2](3) and not r[2](2)


def check_list(r):
    assert r[1](0) is r[1] and r[1](1) is len and torch.allclose(r[1](2), r[0] * 2 - 2, atol=1e-5)


def check_dict(r):
    assert r[0]() is r[0]() and r[0]()["f"] is r[0] and r[0]()["g"] is r[1] and r[1]() is r[0]


def check_class(r):
    assert r[1]() is r[2] and r[2]().make() == (r[2], r[1])


@pytest.mark.parametrize("fn, check", [(recursive, check_recursive), (counted, check_counted), (mutual, check_mutual),
                                       (in_list, check_list), (in_dict_twice, check_dict), (class_beside, check_class)])
def test_a_function_that_reaches_itself(fn, check):
    compiled = jit.compile(fn, fullgraph=True)
    for _ in range(3):
        x = torch.randn(3)
        got = compiled(x)
        check(got)
        check(fn(x))
        if isinstance(got[0], torch.Tensor):
            torch.testing.assert_close(got[0], fn(x)[0])
