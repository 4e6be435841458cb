"""Transform: what each of its operations makes of a graph, by values of the new graph, by ids and by source
positions."""

import pytest
import torch
from graph_harness import trace

from jit.graph.build import Builder
from jit.graph.interpret import evaluate
from jit.graph.ir import Loc, Output, Part, TensorType, Transform, ancestors
from jit.graph.verify import verify

X, Y = torch.arange(6.0).reshape(2, 3), torch.full((2, 3), 2.0)


@pytest.fixture
def graph():
    """exp(x * y) + x, and its sum."""

    def program(x, y):
        z = (x * y).exp() + x
        return z, z.sum()

    graph = trace(program, X, Y)[0]
    for n in graph.nodes:
        n.loc = Loc("program.py", n.id, "program")
    return graph


def node(graph, op):
    (found,) = (n for n in graph.nodes if n.op == op)
    return found


def run(transform, *inputs):
    """What the new graph gives; it is verified, and the one that was read has to be as it was."""
    before = repr(transform.graph), list(transform.graph.nodes), dict(transform.graph.origins)
    made = verify(transform.run())
    assert before == (repr(transform.graph), transform.graph.nodes, transform.graph.origins)
    return made, evaluate(made, inputs)


class WithSin(Transform):
    """sin in the place of exp."""

    def visit(self, n):
        return self.node("sin", self.operands(n), {}, n.type) if n.op == "exp" else self.keep(n)


def test_a_rewrite_keeps_ids_and_what_it_does_not_change(graph):
    made, (z, total) = run(WithSin(graph), X, Y)
    assert torch.equal(z, (X * Y).sin() + X) and torch.equal(total, z.sum())
    assert node(made, "mul") is node(graph, "mul")  # reads the same
    assert node(made, "add") is not node(graph, "add") and node(made, "add").id == node(graph, "add").id


def test_a_new_node_has_a_new_id_an_origin_and_a_position(graph):
    made, _ = run(WithSin(graph), X, Y)
    assert node(made, "sin").id == graph.next_id and made.next_id == graph.next_id + 1
    assert made.origins == {node(made, "sin").id: node(graph, "exp").id}
    assert node(made, "sin").loc == node(graph, "exp").loc


def test_a_second_rewrite_hands_origins_on(graph):
    class WithCos(Transform):
        def visit(self, n):
            return self.node("cos", self.operands(n), {}, n.type) if n.op == "sin" else self.keep(n)

    once, _ = run(WithSin(graph), X, Y)
    twice, (z, _) = run(WithCos(once), X, Y)
    sin, cos = node(once, "sin").id, node(twice, "cos").id
    assert torch.equal(z, (X * Y).cos() + X)
    assert cos != sin and twice.origins == {sin: node(graph, "exp").id, cos: sin}


def test_an_id_is_not_given_again_when_its_node_is_gone(graph):
    class Without(Transform):
        def outputs(self):
            return [Output(self.new[self.graph.outputs[0].node])]

        def order(self):
            return [n for n in self.graph.nodes if n is not self.graph.outputs[1].node]

    shorter, (z,) = run(Without(graph), X, Y)
    assert torch.equal(z, (X * Y).exp() + X) and not any(n.op == "sum" for n in shorter.nodes)
    assert shorter.next_id == graph.next_id == node(run(WithSin(shorter), X, Y)[0], "sin").id


def test_an_existing_node_may_stand_for_another(graph):
    class WithoutExp(Transform):
        def visit(self, n):
            return self.new[n.inputs[0]] if n.op == "exp" else self.keep(n)

    made, (z, _) = run(WithoutExp(graph), X, Y)
    assert torch.equal(z, X * Y + X) and made.origins == {}


def test_keep_with_other_attributes_operation_type_or_inputs(graph):
    class Changed(Transform):
        def visit(self, n):
            if n.op == "exp":
                return self.keep(n, op="neg")
            if n.op == "mul":
                return self.keep(n, inputs=self.operands(n)[::-1])
            if n.op == "sum":
                return self.keep(n, attrs={**n.attrs, "dims": (0,)},
                                 type=TensorType.contiguous((3,), n.dtype, n.device))
            return self.keep(n)

    made, (z, total) = run(Changed(graph), X, Y)
    assert torch.equal(z, X - X * Y) and torch.equal(total, z.sum(0))
    assert [n.id for n in made.nodes] == [n.id for n in graph.nodes] and made.origins == {}


def test_a_graph_apart_has_nodes_of_its_own_numbered_in_order(graph):
    class Apart(WithSin):
        apart = True

    made, (z, _) = run(Apart(graph), X, Y)
    assert torch.equal(z, (X * Y).sin() + X)
    assert [n.id for n in made.nodes] == list(range(len(made.nodes))) and made.origins == {}
    assert not set(made.nodes) & set(graph.nodes)
    assert [n.loc for n in made.nodes] == [n.loc for n in graph.nodes]


def test_a_copy_has_nodes_of_its_own_with_the_same_ids(graph):
    made = graph.copy()
    assert repr(made) == repr(graph) and not set(made.nodes) & set(graph.nodes)
    assert made.next_id == graph.next_id and made.inputs == [n for n in made.nodes if n.op == "input"]


def test_inputs_in_the_place_of_nodes(graph):
    exp = node(graph, "exp")
    made, (z,) = run(Part(graph, [exp, *graph.inputs], [graph.outputs[0].node]), Y, X, Y)
    assert torch.equal(z, Y + X) and not any(n.op in ("exp", "mul", "sum") for n in made.nodes)
    assert [n.attrs["index"] for n in made.inputs] == [0, 1, 2]


def test_inputs_in_the_place_of_nodes_in_a_rewrite(graph):
    exp = node(graph, "exp")

    class From(Transform):
        pass

    made, (z, _) = run(From(graph, [*graph.inputs, exp]), X, Y, Y)
    assert torch.equal(z, Y + X)
    assert made.inputs[:2] == graph.inputs and made.inputs[2].id == exp.id and made.inputs[2] is not exp


def test_an_input_of_another_type_one_more_and_one_that_stands_for_nothing(graph):
    class Inputs(Transform):
        apart = True

        def entry(self, n):
            made = super().entry(n, n.type.replace(dtype=torch.float64))
            return made if n is self.graph.inputs[0] else None

        def order(self):
            self.more = self.input(self.inputs[0].type)
            return super().order()

        def visit(self, n):
            return self.keep(n, type=n.type.replace(dtype=torch.float64))

        def missing(self, n):
            return self.more

    made, (z, _) = run(Inputs(graph, graph.inputs), X.double(), None, Y.double())
    assert torch.equal(z, (X.double() * Y.double()).exp() + X.double()) and len(made.inputs) == 3


def test_an_input_in_the_middle():
    x = torch.ones(2)

    class Scaled(Transform):
        """Each exponential times a further input."""

        apart = True

        def visit(self, n):
            made = self.keep(n)
            return self.node("mul", (made, self.entry(n)), {}, n.type) if n.op == "exp" else made

    graph = trace(lambda x: x.exp().exp(), x)[0]
    made, (y,) = run(Scaled(graph), x, x * 2, x * 3)
    assert torch.equal(y, (x.exp() * 2).exp() * 3) and len(made.inputs) == 3


def test_a_node_for_several_results_becomes_several_nodes():
    x = torch.arange(4.0)

    class Apart(Transform):
        def visit(self, n):
            if isinstance(n.type, tuple):
                (source,) = self.operands(n)
                return tuple(self.node(op, (source,), {}, source.type) for op in ("neg", "abs"))
            return self.keep(n)

    graph = trace(lambda x: torch.sort(x), x)[0]
    assert any(n.op == "getitem" for n in graph.nodes)
    made = Apart(graph).run()
    assert not any(n.op == "getitem" for n in made.nodes)
    assert all(torch.equal(a, b) for a, b in zip(evaluate(made, [x]), (-x, x.abs())))


def test_what_stands_for_nothing_may_be_made_when_it_is_read(graph):
    class Lazy(Transform):
        def visit(self, n):
            return None if n.op in ("mul", "exp") else self.keep(n)

        def missing(self, n):
            return self.node("full", (), {"shape": n.shape, "value": 1.0}, n.type, n)

    made, (z, _) = run(Lazy(graph), X, Y)
    assert torch.equal(z, X + 1) and sum(n.op == "full" for n in made.nodes) == 1
    assert node(made, "full").loc == node(graph, "exp").loc


def test_outputs(graph):
    class Negated(Transform):
        def output(self, o):
            return self.node("neg", (self.new[o.node],), {}, o.node.type)

    made, (z, total) = run(Negated(graph), X, Y)
    assert torch.equal(z, -((X * Y).exp() + X)) and torch.equal(total, z.sum())
    assert made.outputs[0].node.loc == graph.outputs[0].node.loc

    class First(Transform):
        def outputs(self):
            return [Output(self.new[self.graph.outputs[1].node])]

    assert len(run(First(graph), X, Y)[1]) == 1


def test_writes_are_kept():
    def program(x):
        x.mul_(2)
        return x.sum()

    graph, x = trace(program, torch.ones(3))[0], torch.ones(3)
    made, (total,) = run(WithSin(graph), x)
    assert [o.mutates for o in made.outputs] == [None, 0]
    assert total == 6 and torch.equal(x, torch.full((3,), 2.0))


def test_a_builder_makes_the_nodes(graph):
    class Wide(Transform):
        def __init__(self, graph):
            super().__init__(graph, builder=Builder(graph.env))

        def visit(self, n):
            return self.b.add(self.b.mul(self.operands(n)[0], 2.0), 1.0) if n.op == "exp" else self.keep(n)

    made, (z, _) = run(Wide(graph), X, Y)
    assert torch.equal(z, X * Y * 2 + 1 + X)
    new = [n for n in made.nodes if n.id >= graph.next_id]
    assert len(new) == 4 and {n.loc for n in new} == {node(graph, "exp").loc}


def test_ancestors(graph):
    exp, mul, add = (node(graph, op) for op in ("exp", "mul", "add"))
    assert ancestors([add]) == {add, exp, mul, *graph.inputs}
    assert ancestors([add], {exp}) == {add, exp, graph.inputs[0]}
