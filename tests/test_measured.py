"""``jit.explain(measure=True)``: what each kernel and library call takes, and that a call is left as it was."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jit
from jit.report import measured, model

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), nn.LayerNorm(width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def steps_of(told):
    return [(plan, step) for region in told.report.regions for plan in region.plans for step in plan.steps]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layers", [2, 24])  # the second one is compiled in parts
def test_each_step_has_its_time(device, layers):
    torch.manual_seed(0)
    program = nn.Sequential(*(Layer(32) for _ in range(layers))).to(device)
    x = torch.randn(16, 32, device=device)
    told = jit.explain(lambda x: program(x).square().mean(), measure=True)(x)
    steps = steps_of(told)
    assert told.report.measured
    assert {plan.direction for plan, _ in steps} == {model.FORWARD, model.BACKWARD}
    assert [step.name for _, step in steps if step.seconds is None] == []
    assert all(0 < step.seconds < 5 for _, step in steps)
    assert all(p.grad is None for p in program.parameters())
    text = told.text(140)
    assert " time " in text or " time\n" in text


def test_a_step_that_does_more_takes_longer():
    def f(x, y):
        return torch.sort(x)[0].sum(), y.sin()  # 400,000 elements against 4

    told = jit.explain(f, measure=True)(torch.randn(400_000), torch.randn(4))
    seconds = {step.kind: step.seconds for _, step in steps_of(told) if step.name == "sort" or "sin" in step.name}
    assert seconds[model.LIBRARY] > seconds[model.KERNEL]


def test_without_it_nothing_is_measured_and_the_call_is_made_once():
    calls = []

    def f(x):
        calls.append(1)
        return x * 2

    told = jit.explain(f)(torch.randn(4))
    assert len(calls) == 1 and not told.report.measured
    assert all(step.seconds is None for _, step in steps_of(told))
    told = jit.explain(f, measure=True)(torch.randn(4))
    assert len(calls) == 1 + 1 + 8 and told.report.measured


def test_breaks_and_results_in_containers():
    w = torch.randn(4, 4, requires_grad=True)

    def f(x):
        y = torch.softmax(x @ w, -1)
        jit.graph_break()
        return {"y": [y.exp()], "n": 3}, (y.sum(),)

    told = jit.explain(f, measure=True)(torch.randn(3, 4))
    assert len(told.report.regions) == 2
    assert all(step.seconds is not None for _, step in steps_of(told))
    assert w.grad is None


def test_gradients_that_were_there_stay():
    net = nn.Linear(4, 4)
    net(torch.ones(2, 4)).sum().backward()
    before = copy.deepcopy([p.grad for p in net.parameters()])
    jit.explain(net, measure=True)(torch.ones(2, 4))
    assert all(torch.equal(a, p.grad) for a, p in zip(before, net.parameters()))


def test_the_page_and_the_text_show_it(tmp_path):
    told = jit.explain(lambda x: torch.softmax(x, -1), measure=True)(torch.randn(64, 64))
    told.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Time of a run" in page
    ((_, step),) = steps_of(told)
    from jit.report.figures import duration
    assert duration(step.seconds) in told.text(140)


def test_a_profile_with_other_names_gives_no_times():
    told = jit.explain(lambda x: x.sin() @ x)(torch.randn(4, 4))
    (plan,) = told.report.regions[0].plans

    class Event:
        def __init__(self, name, children=(), seconds=1.0):
            self.name, self.cpu_children = name, list(children)
            self.cpu_time_total = self.device_time_total = seconds * 1e6

    kernel, call = plan.steps
    assert measured._aligned(plan.steps, Event(plan.name, [Event("aten::mm", seconds=3.0)])) == {1: 3.0}
    assert measured._aligned(plan.steps, Event(plan.name, [Event(kernel.name), Event("aten::addmm", seconds=2.0)])) == {
        0: 1.0, 1: 2.0}
    assert measured._aligned(plan.steps, Event(plan.name, [Event("aten::sin")])) == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_times_of_a_gpu_are_those_of_its_kernels():
    x = torch.randn(8192, 8192, device="cuda")
    told = jit.explain(lambda x: torch.softmax(x, -1), measure=True)(x)
    ((_, step),) = steps_of(told)
    assert step.least < step.seconds < 10 * step.least
