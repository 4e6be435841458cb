"""Methods of the views of a dict, asked for as attributes: ``d.keys().__contains__(k)``."""

import pytest
import torch

import jit


def views(x, d, more):
    own = {"a": x, **d}
    keys, items = own.keys(), own.items()
    there = keys.__contains__
    found = [there("a"), there("z"), keys.__contains__(more), items.__contains__(("n", 1)), own.values().__len__()]
    own["z"] = x
    found += [there("z"), keys.__len__(), len(list(items.__iter__()))]
    found += [d.keys().__contains__("n"), d.keys().__contains__(more)]
    return x * sum(map(int, found)), found, there


@pytest.mark.parametrize("d", [{}, {"n": 1}, {"n": 2, "q": 3}])
def test_methods_of_views(d):
    compiled, x = jit.compile(views), torch.arange(3.0)
    for more in ("q", "a", "r"):
        (a, found, there), (b, expected, wanted) = compiled(x, d, more), views(x, d, more)
        assert found == expected and torch.equal(a, b)
        assert there("a") and wanted("a") and there.__self__ == wanted.__self__
    assert jit.explain(views)(x, d, "q").graph_break_count == 0


def test_what_they_refuse():
    def f(x, d):
        return x + d.keys().__contains__([])

    for fn in (f, jit.compile(f)):
        with pytest.raises(TypeError):
            fn(torch.ones(1), {"a": 1})
