"""Text that shows sizes which change from call to call: it is eager's, and is known only where the program asks."""

import re

import pytest
import torch

import jit
from jit import api
from jit.frame import dispatch


@pytest.mark.parametrize("text", [
    lambda x: f"{x.shape}", lambda x: f"{x.shape[1:]!r} {x.shape[0]!s} {x.shape[1]!a}", lambda x: f"{x.shape[1]:>5d}",
    lambda x: f"{x.shape[1]:.2f} {x.shape[1]:x}", lambda x: f"{x.shape[1]:c}", lambda x: str(list(x.shape)),
    lambda x: repr((x.shape[1],)) + "!", lambda x: "of " + str(x.size(1)), lambda x: f"{ {'n': x.size(1)} }",
    lambda x: f"{ {x.size(1)} }", lambda x: "%s of %d" % (x.shape[1], x.shape[0]), lambda x: f"{f'{x.size(1)}':>8}",
    lambda x: f"{str(x.size(1))!r}", lambda x: "{}".format(f"{x.shape}"), lambda x: f"{x.size(1)}".upper(),
    lambda x: [f"{x.size(1)}" == "6", "6" == f"{x.size(1)}", f"{x.size(1)}" > "5", "6" in f"{x.size(1)}"],
    lambda x: [len(f"{x.size(1)}"), 2 * str(x.size(1)), str(x.size(1))[0], sorted(f"a{x.size(1)}")],
    lambda x: {str(x.size(1)): {f"k{x.size(1)}"}}, lambda x: bool(f"{x.size(1)}"), lambda x: str(x.size(1)) + 1,
    lambda x: f"{x.size(1):zz}", lambda x: getattr(x, f"T{x.size(1)}"), lambda x: hash(str(x.size(1))),
    lambda x: str(x.size(1)) % (), lambda x: (lambda text: text())(str(x.size(1))), lambda x: int(str(x.size(1))) + 1])
def test_text_that_shows_sizes(text):
    """It is eager's whatever the program does with it, errors included."""
    compiled = jit.compile(lambda x: (x + 1, text(x)))
    for n in (5, 6, 7, 8, 12):
        x = torch.ones(2, n)
        try:
            expected = text(x)
        except Exception as error:
            with pytest.raises(type(error), match=f"^{re.escape(str(error))}$"):
                compiled(x)
        else:
            result, found = compiled(x)
            assert torch.equal(result, x + 1)
            assert found == expected and type(found) is type(expected)


def test_text_for_an_error_that_is_not_raised():
    def sizes(images):
        found = []
        for image in images:
            size = image.shape[-2:]
            torch._assert(len(size) == 2, f"expected two sizes, got {size} of {list(image.shape)}")
            if size[0] < 3:
                raise ValueError(f"{size[0]} is too small, of {tuple(size)}")
            found.append((size[0], size[1], image * 2))
        return found

    captured = []
    compiled = api.compiled_with(sizes, dispatch.Settings(api._backend(None), on_capture=captured.append))
    for n in range(3, 15):
        images = [torch.ones(3, n, 20), torch.ones(3, 4 + n, 20 + n % 4)]
        for ours, theirs in zip(compiled(images), sizes(images)):
            assert ours[:2] == theirs[:2] and torch.equal(ours[2], theirs[2])
    assert len(captured) <= 3 and not any(c.breaks for c in captured)
    with pytest.raises(ValueError, match=r"^2 is too small, of \(2, 20\)$"):
        compiled([torch.ones(3, 2, 20)])
