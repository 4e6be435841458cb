"""What a call costs in the native runtime: plan, target, dispatcher with a tensor guard, and watched guards over a deep
module tree.

    python benchmarks/runtime_costs.py

Prints microseconds per call (the best of five rounds, process time). No compiled code but one 8-element kernel is
involved.
"""

import argparse
import ctypes
import os
import subprocess
import tempfile
import time

import torch
from torch import nn

import jit
from jit.runtime import guards, load_plan, native
from jit.runtime.plan import Plan
from jit.runtime.steps import Alloc, Call

KERNEL = (
    '#include <cstdint>\nextern "C" void add_one(void** p, const int64_t* n) { for (int64_t i = 0; i < n[0]; ++i) '
    '((float*)p[1])[i] = ((const float*)p[0])[i] + 1; }\n')


def microseconds(call, *args, count=100_000):
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        for _ in range(count):
            call(*args)
        best = min(best, (time.process_time() - start) / count)
    return best * 1e6


def report(name, value):
    print(f"{name:58s} {value:9.3f} us")


def add_one():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "k")
        with open(path + ".cpp", "w") as f:
            f.write(KERNEL)
        subprocess.run(["g++", "-O2", "-shared", "-fPIC", path + ".cpp", "-o", path + ".so"], check=True)
        return ctypes.cast(ctypes.CDLL(path + ".so").add_one, ctypes.c_void_p).value


def small_calls():
    x = torch.randn(8)
    steps = (Alloc(1, torch.float32, "cpu", (0,), (1,)), Call(add_one(), (0, 1), (0,)))
    plan = load_plan(Plan(1, 0, (("const", 8), ("const", 1)), 2, steps, (1,)))
    empty = load_plan(Plan(1, 0, (), 1, (), ()))

    def original(x):
        return x + 1

    def target(x):
        return plan(x)[0]

    dispatcher = native().Dispatcher(original)
    checks = [(-1, "global_state", guards.global_state_snapshot()), (0, "tensor", guards.TensorSpec.of(x))]
    program = guards.program([(-1, "local", 0)], checks)
    dispatcher.add_entry(program, target)
    report("x + 1 on 8 floats, eager", microseconds(original, x))
    report("a plan with no step", microseconds(empty, x))
    report("a plan: allocate, 8-element kernel, wrap", microseconds(plan, x))
    report("Python target calling the plan", microseconds(target, x))
    report("dispatcher: global state and tensor guard, target, plan", microseconds(dispatcher, x))
    other = torch.randn(9)
    dispatcher.add_entry(guards.program([(-1, "local", 0)], [(0, "tensor", guards.TensorSpec.of(other))]), lambda x: x)
    report("the same, two entries, the older one hit", microseconds(dispatcher, x))
    large = torch.randn(1 << 24)
    fresh = microseconds(lambda: torch.add(large, 1), count=5)
    regs = (("const", large.numel()), ("const", 1))
    pooled = load_plan(Plan(1, 0, regs, 2, steps, (1,)))
    report("64 MB output, eager (page faults)", fresh)
    report("64 MB output, pooled", microseconds(pooled, large, count=5))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("q", "k", "v", "o", "up", "gate", "down"):
            setattr(self, name, nn.Linear(4, 4))
        self.norm1, self.norm2, self.act = nn.LayerNorm(4), nn.LayerNorm(4), nn.SiLU()


def module_guards(root):
    """Accessors and checks over every module, parameter, hook table and training flag below ``root``."""
    accessors, checks = [(-1, "const", root)], []

    def add(*record):
        accessors.append(record)
        return len(accessors) - 1

    def walk(at, module):
        checks.extend([(at, "type_is", type(module)), (at, "no_dict_attr", "forward"),
                       (add(at, "dict_attr", "training"), "eq", True)])
        for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"):
            checks.append((add(at, "dict_attr", hooks), "len", 0))
        parameters = add(at, "dict_attr", "_parameters")
        for name, parameter in module._parameters.items():
            if parameter is not None:
                checks.append((add(parameters, "item", name), "tensor", guards.TensorSpec.of(parameter)))
        children = add(at, "dict_attr", "_modules")
        checks.append((children, "dict_keys", tuple(module._modules)))
        for name, child in module._modules.items():
            walk(add(children, "item", name), child)

    walk(0, root)
    return accessors, checks


def deep_tree(blocks=36):
    net = nn.ModuleList([Block() for _ in range(blocks)])
    accessors, checks = module_guards(net)
    program = guards.program(accessors, checks)
    start = time.perf_counter()
    assert program.check(())
    walk = time.perf_counter() - start
    modules = len(list(net.modules()))
    report(f"first walk: {modules} modules, {len(checks)} checks", walk * 1e6)
    report("watched check, nothing changed", microseconds(program.check, (), count=3000))

    def touched():
        net.training = True
        return program.check(())

    report("watched check after a same-value store", microseconds(touched, count=3000))

    def replaced():
        net[0].q.weight = nn.Parameter(net[0].q.weight.data)
        return program.check(())

    report("a parameter replaced: walked again", microseconds(replaced, count=100))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def around(model):
    return lambda x: model(x)


def layers(numbers=(6, 24, 48)):
    """The guards of compiled models of so many layers: of a model that the function knows, and of one that it is
    given."""
    x = torch.randn(2, 8)
    for number in numbers:
        model = nn.Sequential(*(Layer() for _ in range(number)))
        for name, fn, args in (("known", jit.compile(around(model)), (x,)),
                               ("argument", jit.compile(lambda model, x: model(x)), (model, x))):
            with torch.no_grad():
                for _ in range(4):
                    fn(*args)
                (entry,) = fn.entries
                report(f"guards of a model of {number} layers, {name}",
                       microseconds(entry.guards.check, args, count=10_000))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    small_calls()
    deep_tree()
    layers()
