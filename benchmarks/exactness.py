"""How exact compiled code is beside eager: random nets of convolutions, norms and reductions, values and gradients,
against float64.

Each net is made from its seed: convolutions (plain, grouped, depthwise, dilated, strided, transposed), batch, group,
layer and instance norms in training mode, activations, pooling, residual sums, channel gates, softmax, and several
reductions at the end, on contiguous or channels-last images. The same parameters and inputs go through eager, each
compiler, and eager in float64, which is taken for the truth. Compared are the results, the running statistics, and the
gradients of inputs and parameters for random tangents.

The error of a tensor is |computed - truth| / |truth| in the Euclidean norm over all its elements, and of several draws
of the inputs (--draws) the median: where a value lies within rounding of a kink (relu, maximum) one draw may go the
other way, in any compiler, and is then wrong by far more than rounding. An error below half a unit of rounding (eps /
4) counts as that much: a tensor that is rounded once has about as much. A tensor's ratio is a compiler's error over
eager's. A net shows its worst tensor's ratio and the geometric mean of all its tensors' ratios; the last lines show the
geometric mean of all nets' means, and the worst tensor of all. Below 1 is more exact than eager.
"""

from __future__ import annotations

import random
import statistics

import _harness as harness
import torch
import torch.nn.functional as F
from torch import nn

ACTIVATIONS = ("relu", "gelu", "silu", "tanh", "sigmoid", "softplus", "elu", "leaky_relu", "mish", "hardswish")


class Residual(nn.Module):
    """``x + body(x)`` for a body that keeps the shape."""

    def __init__(self, *body):
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x):
        return x + self.body(x)


class Gate(nn.Module):
    """Each channel times a number computed from the means of all: "squeeze and excitation"."""

    def __init__(self, channels):
        super().__init__()
        self.first, self.second = nn.Linear(channels, 4), nn.Linear(4, channels)

    def forward(self, x):
        scale = torch.sigmoid(self.second(F.silu(self.first(x.mean((2, 3))))))
        return x * scale[:, :, None, None]


class Function(nn.Module):
    """A function of one tensor as a module."""

    def __init__(self, name, fn):
        super().__init__()
        self.name, self.fn = name, fn

    def forward(self, x):
        return self.fn(x)

    def extra_repr(self):
        return self.name


class ChannelNorm(nn.Module):
    """Layer norm over the channels of an image, as in ConvNeXt, or over all of one."""

    def __init__(self, shape):
        super().__init__()
        self.over_all = len(shape) > 1
        self.norm = nn.LayerNorm(shape)

    def forward(self, x):
        return self.norm(x) if self.over_all else self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


REDUCTIONS = {
    "mean": lambda x: x.mean((2, 3)),
    "sum of all": lambda x: x.sum(),
    "sum of rows": lambda x: x.sum(0),
    "variance": lambda x: x.var((0, 2, 3)),
    "deviation": lambda x: x.std((1, 2, 3)),
    "norm": lambda x: x.norm(dim=1),
    "log of sums of exponentials": lambda x: x.flatten(2).logsumexp(-1),
    "maximum": lambda x: x.amax((2, 3)),
    "mean square": lambda x: (x * x).mean((0, 1)),
    "scan": lambda x: x.flatten(2).cumsum(-1),
    "dot": lambda x: (x * x.roll(1, 0)).sum((1, 2, 3)),
}


class Net(nn.Module):
    """The net of one seed. ``shape``: of its input, (N, C, H, W)."""

    def __init__(self, seed):
        super().__init__()
        self.random = random.Random(seed)
        pick = self.random.choice
        self.shape = (pick([2, 4, 8]), pick([2, 3, 6]), pick([12, 17, 24, 32]), pick([12, 16, 23, 32]))
        self.channels, self.size = self.shape[1], list(self.shape[2:])
        stages = []
        for k in range(pick([3, 4, 5, 6])):
            stages.append(self.convolution())
            made = [make() for make in self.random.sample([self.norm, self.activation, self.rest], pick([2, 3]))]
            stages += made
            if k and pick([0, 0, 1]):
                c = self.channels
                stages.append(Residual(nn.Conv2d(c, c, 3, padding=1, groups=pick([1, c])),
                                       self.norm(), self.activation()))
        self.stages = nn.Sequential(*stages)
        self.ends = self.random.sample(sorted(REDUCTIONS), 3)
        del self.random

    def convolution(self):
        pick, c = self.random.choice, self.channels
        kind = pick(["plain", "plain", "plain", "depthwise", "grouped", "dilated", "strided", "transposed"])
        bias = pick([True, False])
        out = pick([4, 8, 12, 16])
        if kind == "depthwise":
            return nn.Conv2d(c, c, 3, padding=1, groups=c, bias=bias)
        self.channels = out
        if kind == "transposed" and max(self.size) <= 16:
            self.size = [2 * s for s in self.size]
            return nn.ConvTranspose2d(c, out, 2, stride=2, bias=bias)
        if kind == "strided" and min(self.size) >= 12:
            self.size = [(s + 1) // 2 for s in self.size]
            return nn.Conv2d(c, out, 3, stride=2, padding=1, bias=bias)
        if kind == "dilated":
            return nn.Conv2d(c, out, 3, padding=2, dilation=2, bias=bias)
        if kind == "grouped" and c % 2 == 0:
            return nn.Conv2d(c, out, 3, padding=1, groups=2, bias=bias)
        k = pick([1, 3, 5])
        return nn.Conv2d(c, out, k, padding=k // 2, bias=bias)

    def norm(self):
        pick, c = self.random.choice, self.channels
        return pick([lambda: nn.BatchNorm2d(c), lambda: nn.BatchNorm2d(c),
                     lambda: nn.GroupNorm(pick([1, 2, 4]), c) if c % 4 == 0 else nn.GroupNorm(1, c),
                     lambda: ChannelNorm((c,)), lambda: ChannelNorm((c, *self.size)),
                     lambda: nn.InstanceNorm2d(c, affine=True)])()

    def activation(self):
        name = self.random.choice(ACTIVATIONS)
        return Function(name, getattr(F, name))

    def rest(self):
        kind = self.random.choice(["average", "maximum", "adaptive", "gate", "softmax"])
        if kind in ("average", "maximum") and min(self.size) >= 12:
            self.size = [s // 2 for s in self.size]
            return nn.AvgPool2d(2) if kind == "average" else nn.MaxPool2d(2)
        if kind == "adaptive" and min(self.size) >= 9:
            self.size = [s - 3 for s in self.size]
            return nn.AdaptiveAvgPool2d(tuple(self.size))
        if kind == "softmax":
            return Function("x + 9 softmax(x)", lambda x: x + 9 * x.softmax(1))
        return Gate(self.channels)

    def forward(self, x):
        y = self.stages(x)
        return tuple(REDUCTIONS[name](y) for name in self.ends)


def run(program, net, x, tangents):
    """{name: tensor} of results, running statistics and gradients. ``tangents``: one for each result."""
    net.zero_grad()
    x = x.detach().requires_grad_()
    results = program(x)
    torch.autograd.backward(results, [t.to(r) for t, r in zip(tangents, results)])
    out = {f"result {k}": r.detach() for k, r in enumerate(results)}
    out.update((f"statistics {n}", b.clone()) for n, b in net.named_buffers() if b.is_floating_point())
    out["gradient of the input"] = x.grad
    out.update((f"gradient of {n}", p.grad.clone()) for n, p in net.named_parameters())
    return out


def error(value: torch.Tensor, truth: torch.Tensor) -> float:
    """|value - truth| / |truth| in the Euclidean norm."""
    return ((value.double() - truth).norm() / truth.norm().clamp_min(1e-300)).item()


def compare(seed, names, dtype, channels_last, draws) -> dict:
    """{compiler: {name of a tensor: (median error, eager's)}} of one net."""
    programs = {}
    for name in ("eager", *names, "truth"):
        torch.manual_seed(seed)
        net = Net(seed).to(dtype)
        if name == "truth":
            net = net.double()
        programs[name] = net, net if name in ("eager", "truth") else harness.wrap(name, net)
    errors = {name: {} for name in ("eager", *names)}
    for draw in range(draws):
        torch.manual_seed(1000 + draw)
        x = torch.randn(net.shape).to(dtype)
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        tangents = [torch.randn(t.shape).to(dtype)
                    for t in torch.utils._pytree.tree_leaves(eager_shapes(programs["truth"][0], x))]
        runs = {name: run(program, net, x.double() if name == "truth" else x, tangents) for name,
                (net, program) in programs.items()}
        for name, found in errors.items():
            for what, truth in runs["truth"].items():
                found.setdefault(what, []).append(error(runs[name][what], truth))
    medians = {name: {what: statistics.median(e) for what, e in found.items()} for name, found in errors.items()}
    return {name: {what: (e, medians["eager"][what]) for what, e in medians[name].items()} for name in names}


def eager_shapes(net, x):
    """The results of a net in float64, for their shapes; its running statistics stay."""
    kept = {n: b.clone() for n, b in net.named_buffers()}
    with torch.no_grad():
        results = net(x.double())
        for n, b in net.named_buffers():
            b.copy_(kept[n])
    return results


def main():
    p = harness.parser(__doc__, seconds=None)
    p.set_defaults(compilers="jit")
    p.add_argument("--nets", type=int, default=30, help="how many nets (default 30)")
    p.add_argument("--seed", type=int, default=0, help="of the first net; the next ones count on (default 0)")
    p.add_argument("--draws", type=int, default=25, help="draws of the inputs of each net (default 25)")
    p.add_argument("--dtype", default="float32", help="default float32")
    p.add_argument("--layout", choices=["both", "contiguous", "channels_last"],
                   default="both", help="of the inputs; both: of every other net (default)")
    p.add_argument("--verbose", action="store_true", help="the worst three tensors of each net")
    args = p.parse_args()
    names = [n for n in harness.start(args) if n != "eager"]
    dtype, floor = getattr(torch, args.dtype), torch.finfo(getattr(torch, args.dtype)).eps / 4
    rows, worst = [], {name: [] for name in names}
    print(f"{'net':>4} {'input':>18} {'layout':>14}  " + "  ".join(f"{n + ' mean':>20} {'worst':>6}" for n in names))
    for seed in range(args.seed, args.seed + args.nets):
        last = args.layout == "channels_last" or args.layout == "both" and seed % 2 == 1
        found = compare(seed, names, dtype, last, args.draws)
        line = f"{seed:>4} {'x'.join(map(str, Net(seed).shape)):>18} {'channels last' if last else 'contiguous':>14}  "
        for name in names:
            ratios = {what: max(e, floor) / max(eager, floor) for what, (e, eager) in found[name].items()}
            mean, most = harness.geomean(ratios.values()), max(ratios, key=ratios.get)
            worst[name].append((mean, ratios[most], seed, most))
            rows.append({"net": seed, "channels_last": last, "compiler": name,
                         "mean": mean, "worst": ratios[most], "tensor": most})
            line += f"{mean:>20.2f} {ratios[most]:>6.2f}  "
            if args.verbose:
                for what in sorted(ratios, key=ratios.get)[-3:][::-1]:
                    line += (
                        f"\n       {ratios[what]:6.2f} {what}: {found[name][what][0]:.2e}, eager "
                        f"{found[name][what][1]:.2e}")
        print(line, flush=True)
    for name in names:
        _, top, seed, what = max(worst[name], key=lambda w: w[1])
        print(f"{name}: geometric mean {harness.geomean(w[0] for w in worst[name]):.3f}, of the nets' worst "
              f"{harness.geomean(w[1] for w in worst[name]):.3f}; "
              f"worst {top:.2f} ({what} of net {seed}); above 2: {sum(w[1] > 2 for w in worst[name])} of {args.nets} "
              "nets")
    harness.save(args, rows)


if __name__ == "__main__":
    main()
