"""What transforms do in layouts that eager refuses or keeps: tangents lie as their tensors do, and maps over no slices
are maps of shapes with a 0 in them."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import jit


def outcome(fn, *args):
    try:
        found = fn(*args)
    except (RuntimeError, ValueError, IndexError) as error:
        return str(error)
    return [(t.shape, t.stride(), (t * 1000).round().tolist()) for t in torch.utils._pytree.tree_leaves(found)]


def agree(fn, *args, backend="jit"):
    jit.reset()
    compiled = jit.compile(fn, backend=backend)
    for _ in range(2):
        assert outcome(compiled, *args) == outcome(fn, *args)


def unpacked(fn, tangent):
    def dual(x):
        with forward_ad.dual_level():
            return tuple(forward_ad.unpack_dual(fn(forward_ad.make_dual(x, tangent(x)))))

    return dual


LAYOUTS = {
    "expanded": lambda: torch.ones(3).expand(2, 3), "turned": lambda: torch.arange(6.0).view(3, 2).t(),
    "steps": lambda: torch.arange(6.0)[::2], "rows": lambda: torch.arange(6.0).view(2, 3),
    "one row": lambda: torch.ones(1, 3)}
DERIVATIVES = {
    "dual, itself": unpacked(lambda x: x, torch.ones_like),
    "dual, of rows": unpacked(lambda x: x, lambda x: torch.ones(x.shape)),
    "dual, of the tensor": unpacked(lambda x: x, lambda x: x),
    "dual": unpacked(lambda x: x.sin() + 1, lambda x: torch.ones(x.shape)),
    "jvp": lambda x: jvp(lambda x: x.sin(), (x,), (torch.ones(x.shape),)),
    "jvp of one of two": lambda x: jacfwd(lambda x, y: x.sin() * y, argnums=1)(torch.ones(x.shape), x),
    "jvp of both": lambda x: jacfwd(lambda x, y: x.sin() * y, argnums=(0, 1))(x, x),
    "jacfwd": jacfwd(lambda x: x.sin()), "hessian": hessian(lambda x: x.sin().sum()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", DERIVATIVES)
def test_tangents_lie_as_their_tensors(name, layout):
    agree(DERIVATIVES[name], LAYOUTS[layout]())


@pytest.mark.parametrize("layout", ["turned", "rows"])
def test_tangents_lie_as_their_tensors_in_one_graph(layout):
    fn = DERIVATIVES["jvp"]
    x = LAYOUTS[layout]()
    assert outcome(jit.compile(fn, fullgraph=True), x) == outcome(fn, x)


MAPS = {
    "view": vmap(lambda x: x.view(-1)), "reshape": vmap(lambda x: x.reshape(-1)[:2] * 2), "sin": vmap(torch.sin),
    "softmax": vmap(lambda x: x.softmax(-1)), "sum": vmap(lambda x: x.sum()),
    "grad": vmap(grad(lambda x: x.sin().sum())),
    "sizes": vmap(lambda x: x.view(x.shape) + 1), "jacrev": jacrev(lambda x: x.view(-1) * 2),
    "jacfwd": jacfwd(torch.sin),
    "jacfwd of a view": jacfwd(lambda x: x.view(-1)), "hessian": hessian(lambda x: x.sin().sum()),
    "a number added": vmap(lambda x: x + 1), "numbers of rows": vmap(lambda x: x.sum() * 1.5),
    "map in a map": lambda x: vmap(vmap(lambda y: y.view(-1) + 1), in_dims=1)(x.new_ones(2, 3, 1))}


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
@pytest.mark.parametrize("name", MAPS)
def test_maps_over_no_slices(name, shape):
    agree(MAPS[name], torch.zeros(shape))


def test_maps_over_no_slices_are_captured():
    x = torch.zeros(0, 4)
    found = jit.compile(vmap(lambda r: (r * 2).cumsum(0)), fullgraph=True)(x)
    assert found.shape == (0, 4)


def test_what_a_dual_number_was_made_of_is_a_view_of_the_tensor():
    def fn(x):
        with forward_ad.dual_level():
            primal = forward_ad.unpack_dual(forward_ad.make_dual(x, torch.ones_like(x))).primal
        return primal

    x = torch.ones(3)
    found = jit.compile(fn, fullgraph=True)(x)
    assert found is not x and fn(x) is not x and found.data_ptr() == fn(x).data_ptr() == x.data_ptr()


NUMBERS = {
    "jvp": lambda x: jvp(lambda x: 0.5 * (x**3).sum(), (x,), (x,)), "jacfwd": jacfwd(lambda x: x.sum() - 0.5),
    "of slices": vmap(jacfwd(lambda x: x.sum() / 2.5)),
    "stacked": jacfwd(lambda x: torch.stack([x[0, 0] * 2.5, x[0, 1]])),
    "with an integer": jacfwd(lambda x: x.sum() * 2), "dimensions": jacfwd(lambda x: (x * 0.5).sum(0)),
    "of a gradient": jacfwd(grad(lambda x: 0.5 * (x**3).sum())), "hessian": hessian(lambda x: (x.sum() * 0.5).tanh())}


@pytest.mark.parametrize("name", NUMBERS)
def test_tangents_have_the_dtypes_of_eager(name):
    x = torch.arange(6.0).view(2, 3)
    want, got = (torch.utils._pytree.tree_leaves(run(x)) for run in (NUMBERS[name], jit.compile(NUMBERS[name])))
    assert [t.dtype for t in got] == [t.dtype for t in want]
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", ["with an integer", "dimensions", "of a gradient", "hessian"])
def test_numbers_in_forward_mode_are_captured(name):
    jit.compile(NUMBERS[name], fullgraph=True)(torch.arange(6.0).view(2, 3))


EXPANDED = {
    "jacobian of a gradient": jacfwd(grad(lambda x: x.sum().tanh())), "reverse": jacrev(grad(lambda x: x.sum().tanh())),
    "of an expanded": jacfwd(lambda x: x.sum().tanh().expand(3)), "gradients": vmap(grad(lambda r: r.sum() * 2)),
    "rows": vmap(lambda r: r.sum().expand(4))}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", EXPANDED)
def test_slices_that_are_expanded_stay_so(name, dynamic):
    compiled = jit.compile(EXPANDED[name], fullgraph=True, dynamic=dynamic)
    for n in (2, 3, 4):
        x = torch.arange(3.0 * n).view(n, 3) / 9
        want, got = EXPANDED[name](x), compiled(x)
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)


ONES = {
    "unsqueeze": vmap(lambda r: r.unsqueeze(-1)), "of a product": vmap(lambda r: (r * 2).unsqueeze(-1)),
    "by an index": vmap(lambda r: r[..., None].sin()), "first": vmap(lambda r: (r + 1)[None]),
    "both": vmap(lambda r: (r * 3).unsqueeze(0).unsqueeze(-1)),
    "taken out": vmap(lambda r: (r * 3)[:, None].squeeze(1)),
    "nested": vmap(vmap(lambda r: (r * 2)[None])), "viewed": vmap(lambda r: r.view(-1, 1))}


@pytest.mark.parametrize("name", ONES)
def test_axes_of_size_one_lie_as_in_eager(name):
    compiled = jit.compile(ONES[name], fullgraph=True)
    for n in (2, 3, 4):
        for x in (torch.randn(n, 3), torch.randn(3, n).t(), torch.randn(n, 6)[:, ::2]):
            want, got = ONES[name](x), compiled(x)
            assert got.stride() == want.stride()
            torch.testing.assert_close(got, want)


SPREAD = {
    "second derivatives of a sum": hessian(lambda x: x.sum()), "of a mean": hessian(lambda x: x.mean()),
    "forward of a gradient": jacfwd(grad(lambda x: x.sum())), "of rows": jacfwd(jacrev(lambda x: x * 2)),
    "kept dimensions": hessian(lambda x: x.sum(-1, keepdim=True)), "turned round": hessian(lambda x: x.flip(0).sum()),
    "reverse of reverse": jacrev(jacrev(lambda x: x.sum())), "zeros of no slice": vmap(lambda x: torch.zeros(2, 3).t()),
    "like what is outside": vmap(lambda x: torch.zeros_like(torch.ones(3))),
    "zeros of a slice": vmap(lambda x: x.new_zeros(2, 3).t()), "and more": vmap(lambda x: x.new_zeros(3) + 1),
    "every second": vmap(lambda x: x.new_zeros(6)[::2]), "behind": vmap(lambda x: torch.zeros(2, 3), out_dims=1),
    "in the outer map": vmap(lambda x: vmap(lambda y: x.new_zeros(3))(torch.ones(2))),
    "in the inner map": vmap(lambda x: vmap(lambda y: y.new_zeros(3))(torch.ones(2))),
    "changed by what the outer map maps": vmap(lambda x: vmap(lambda y: y.new_ones(3).add_(x.sum()))(torch.ones(2))),
    "changed by the inner": vmap(lambda x: vmap(lambda y: x.new_ones(3).add_(y))(torch.ones(2)))}


@pytest.mark.parametrize("layout", ["rows", "square", "steps"])
@pytest.mark.parametrize("name", SPREAD)
def test_what_no_slice_leads_to_is_expanded(name, layout):
    agree(SPREAD[name], torch.ones(3, 3) if layout == "square" else LAYOUTS[layout]())


BETWEEN = {
    "contiguous": lambda r: r.clamp(0.5).contiguous(), "asked": lambda r: r.sin() * r.sin().stride(0),
    "shown or copied": lambda r: (r * 2).transpose(0, -1).reshape(-1), "cloned": lambda r: r.exp().clone(),
    "joined": lambda r: torch.stack([r, r], -1), "filled": lambda r: r.masked_fill(r > 1, 0),
    "power of a number": lambda r: 2 ** r, "spread": torch.diag_embed,
    "triangle": lambda r: r.expand(2, *r.shape).tril(),
    "turned round": lambda r: r.sin().transpose(0, -1), "of two": lambda r: (r * 2, r.sum(0)),
    "nested": lambda r: vmap(lambda e: e.clamp(0.5).contiguous(), in_dims=-1)(r),
    "changed": lambda r: r.add_(1), "changed and copied": lambda r: r.clone().mul_(2)}
LYING = {
    "turned": ({}, lambda n: torch.arange(6.0 * n).view(2, 3, n).permute(2, 0, 1)),
    "between": ({"out_dims": -1}, lambda n: torch.arange(6.0 * n).view(3, n, 2).permute(1, 2, 0)),
    "last": ({"in_dims": -1}, lambda n: torch.arange(6.0 * n).view(2, 3, n)),
    "to the last": ({"out_dims": -1}, lambda n: torch.arange(6.0 * n).view(n, 2, 3))}


@pytest.mark.parametrize("lying", LYING)
@pytest.mark.parametrize("name", BETWEEN)
def test_slices_lie_as_in_eagers_tensor_of_all(name, lying):
    axes, make = LYING[lying]
    fn = vmap(BETWEEN[name], **axes)
    jit.reset()
    compiled = jit.compile(fn, fullgraph=True)
    for n in (2, 4, 5):
        given, other = make(n) / 16, make(n) / 16
        assert outcome(compiled, given) == outcome(fn, other)
        assert torch.equal(given, other)


@pytest.mark.parametrize("fn", [lambda r: torch.column_stack([r, r]), lambda r: r.data * 2, lambda r: r.sum().flip(0),
                                lambda r: torch.bucketize(r, torch.arange(3.0))],
                         ids=["no rule", "data", "no dimension", "found"])
def test_what_eagers_maps_refuse(fn):
    agree(vmap(fn), torch.ones(3, 2))


SHOWN = {
    "T": lambda r: r.T, "expand": lambda r: r.expand(r.shape), "t": lambda r: r.t(), "view": lambda r: r.view(r.shape),
    "movedim": lambda r: r.movedim(0, 0), "transpose": lambda r: r.transpose(0, 0), "same": lambda r: r.contiguous()}


@pytest.mark.parametrize("name", SHOWN)
def test_which_results_are_the_very_tensor(name):
    fn = vmap(lambda r: (SHOWN[name](r), r))
    for x in (torch.ones(3), torch.ones(3, 2)):
        want, got = fn(x), jit.compile(fn)(x)
        assert [t is x for t in want] == [t is x for t in got]
        assert all(t.data_ptr() == x.data_ptr() for t in got)
