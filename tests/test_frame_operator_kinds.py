"""Every operator between every two kinds of operands: values, types and errors as CPython's protocols give them."""

import fractions
import operator
import os

import numpy as np
import pytest
import torch
from kinds_harness import OPERANDS, Asked, Inherits, Overrides, differences, fresh, shown

import jit

BINARY = (operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
          operator.matmul, operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor, divmod)
INPLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod,
           operator.ipow, operator.imatmul, operator.ilshift, operator.irshift, operator.iand, operator.ior,
           operator.ixor)
COMPARE = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)
OTHERS = (operator.is_, operator.contains, operator.concat)


def outcomes(a, b, operators):
    found = []
    for op in operators:
        try:
            found.append(op(a, b))
        except Exception as error:
            found.append((type(error), str(error)))
    return found


def in_place(pairs, operators):
    found = []
    for (a, b), op in zip(pairs, operators):
        try:
            found.append((op(a, b), a, b))
        except Exception as error:
            found.append((type(error), str(error), a, b))
    return found


@pytest.mark.parametrize("left", OPERANDS)
def test_operators(left):
    """Each kind on the left of every third other one; ``EVERY=1`` in the environment: of all."""
    rows = list(OPERANDS)
    rights = rows if os.environ.get("EVERY") else rows[rows.index(left) % 3::3]
    found = []
    for right in rights:
        def operands():
            return fresh(OPERANDS[left]), fresh(OPERANDS[right])

        found += [(left, right, row) for row in differences(outcomes, BINARY + COMPARE + OTHERS, operands)]
        found += [(left, right, row) for row in differences(
            in_place, INPLACE, lambda: ([operands() for _ in INPLACE],))]
    assert not found, "\n".join(map(str, found[:20]))


def test_the_right_operand_of_a_subclass_goes_first_where_it_overrides():
    def run(a, b, x):
        return a + b, x + 1

    for left, right in ((Asked, Inherits), (Asked, Overrides), (Inherits, Overrides), (Overrides, Asked)):
        jit.reset()
        assert jit.compile(run, fullgraph=True)(left(), right(), torch.ones(2))[0] == left() + right()


def test_symbolic_integers_compare_with_any_number():
    def run(x):
        n = x.shape[0]
        return (x + 1, n == 2.5, n == 3 + 0j, n < fractions.Fraction(7, 2), n == None, n != "3",
                n == (3,),  # noqa: E711
                divmod(n, 2), divmod(7, n), n in (1, 3, 5), [1, 2] * n, "ab" * n)

    compiled = jit.compile(run)
    for size in (3, 4, 5, 2, 3):
        want, got = run(torch.ones(size)), compiled(torch.ones(size))
        assert want[1:] == got[1:], size


def test_numpy_integers_are_indices():
    def run(x, i):
        return [5, 6, 7][i], x[i], (1, 2, 3)[i:], x == i

    x, i = torch.arange(3), np.int64(1)
    want, got = run(x, i), jit.compile(run)(x, i)
    assert shown(want) == shown(got)
