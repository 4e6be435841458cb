"""Matrix products as statements of loops: what all templates for them have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...graph.ir import filled
from ..indexing import broadcast_index
from ..lower import register_dtype
from ..template import Template

if TYPE_CHECKING:
    from ...graph.dims import IntExpr
    from ...graph.ir import Node
    from ..loops import Kernel, Load, Reduce, Statement
    from ..lower import Emitter


def parts(node: Node) -> tuple[Node, Node, Node | None, bool] | None:
    """(left operand, right operand, bias or None, whether the right one is transposed) of a library call that is a
    product of matrices; None for any other."""
    if node.op != "aten_call" or node.attrs["overload"] != "":
        return None
    args = list(filled(node.attrs["args"], node.inputs))
    target = node.attrs["target"]
    if target == "aten::mm" or target == "aten::matmul" and args[0].type.rank >= 2 and args[1].type.rank == 2:
        return args[0], args[1], None, False
    if target == "aten::addmm" and all(type(a) in (int, float) and a == 1 for a in args[3:]):
        return args[1], args[2], args[0], False
    if target == "aten::linear":
        return args[0], args[1], args[2] if len(args) > 2 else None, True
    return None


class Product(Template):
    """A product of two matrices, or of all rows of a tensor with one, and a bias if there is one."""

    def matches(self, node: Node) -> bool:
        found = parts(node)
        if found is None or not node.type.dtype.is_floating_point:
            return False
        x, w, bias, _ = found
        return (w.type.rank == 2 and x.type.rank >= 2
                and all(t is None or t.type.dtype is node.type.dtype for t in (x, w, bias)))

    def value(self, e: Emitter, node: Node, index: tuple[IntExpr, ...]) -> str:
        x, w, bias, transposed = parts(node)
        dtype = register_dtype(node.type.dtype)
        *row, column = index
        along = e.b.axis(x.type.shape[-1], "r")
        left = e.value(x, (*row, along))
        right = e.value(w, (column, along) if transposed else (along, column))
        total = e.b.reduce("sum", e.compute("mul", left, right, dtype=dtype))
        if bias is None:
            return total
        return e.compute("add", total, e.value(bias, broadcast_index(bias.type.shape, index)), dtype=dtype)


def sum_of_products(kernel: Kernel) -> tuple[Reduce, Load, Load] | None:
    """The sum of a kernel that is a product, and the loads of the elements that it multiplies, if nothing else is done
    with elements of the operands but to widen them."""
    found = sum_of_loads(kernel)
    if found is None or len(kernel.raxes) != 1 or any(s.operands for s in found[1:]):
        return None
    product = kernel.definition[found[0].arg]
    return found if kernel.element_values == {product.dst, *product.operands, *(s.dst for s in found[1:])} else None


def sum_of_loads(kernel: Kernel) -> tuple[Reduce, Load, Load] | None:
    """The only sum of a kernel, and the loads of what it multiplies, if nothing else that varies along the sum is
    computed but where the first of them is to be read."""
    combined = [s for s in kernel.body if s.combine]
    if len(combined) != 1 or combined[0].combine != "sum" or not combined[0].reduces:
        return None
    (total,) = combined
    product = kernel.definition[total.arg]
    if product.prim != "mul":
        return None
    left, right = (_behind_cast(kernel, a) for a in product.operands)
    if not left.loaded or not right.loaded or right.operands:
        return None
    own = {product.dst, *product.operands, left.dst, right.dst}
    wanted = set(left.operands)
    for s in reversed(kernel.body):
        if s.dst in wanted and s.dst not in own:
            wanted.update(s.operands)
    if any(kernel.definition[n].loaded for n in wanted) or not kernel.element_values <= own | wanted:
        return None
    return None if any(s.effect and kernel.is_element(s) for s in kernel.body) else (total, left, right)


def _behind_cast(kernel: Kernel, name: str) -> Statement:
    """What defines a value, or what it is a cast of."""
    s = kernel.definition[name]
    return kernel.definition[s.operands[0]] if s.prim == "cast" else s
