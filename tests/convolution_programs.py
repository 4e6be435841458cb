"""Programs with convolutions that are followed by something, for the tests of templates: ``PROGRAMS[name]`` is a
``Program`` (see ``template_programs``)."""

import torch
import torch.nn.functional as F
from template_programs import Program

from jit.codegen import template
from jit.codegen.templates.convolutions import Convolution, Depthwise

PROGRAMS = {}


def program(tensors, taken=1, dynamic=False):
    def add(fn):
        PROGRAMS[fn.__name__] = Program(fn, tensors, taken, dynamic)
        return fn

    return add


def last(x):
    return x.contiguous(memory_format=torch.channels_last)


def norm(x, mean, var, w, b):
    return F.batch_norm(x, mean, var.abs() + 0.5, w, b)


@program(lambda t: (last(t(2, 16, 7, 6)), last(t(24, 16, 3, 3)) / 9, t(24), t(24), t(24), t(24)))
def normed(x, w, mean, var, g, b):
    return norm(F.conv2d(x, w, None, 1, 1), mean, var, g, b).relu()


@program(lambda t: (last(t(2, 16, 7, 6)), last(t(24, 16, 1, 1)), t(24), last(t(2, 24, 7, 6))))
def pixelwise(x, w, b, r):
    return (F.conv2d(x, w) + b[:, None, None] + r).relu()


@program(lambda t: (last(t(2, 16, 8, 7)), last(t(24, 16, 1, 1))))
def pixelwise_strided(x, w):
    return F.conv2d(x, w, None, 2).relu()


@program(lambda t: (last(t(1, 3, 15, 13)), t(8, 3, 7, 7) / 12, t(8)))
def few_channels(x, w, b):
    return F.conv2d(x, w, None, 2, 3).add(b[:, None, None]).relu()


@program(lambda t: (t(1, 3, 15, 13), t(8, 3, 7, 5) / 12))
def few_channels_in_planes(x, w):
    return F.conv2d(x, w, None, (2, 1), (3, 0)).sigmoid()


@program(lambda t: (last(t(2, 20, 9, 8)), t(17, 20, 3, 3) / 13, last(t(2, 17, 5, 8))))
def odd_channels(x, w, r):
    return F.conv2d(x, w, None, (2, 1), 1).add(r).relu()


@program(lambda t: (last(t(2, 32, 7, 6)), last(t(24, 32, 3, 3)) / 17, t(24), last(t(2, 24, 7, 6))))
def many_channels(x, w, b, r):
    return (F.conv2d(x, w, None, 1, 1) * b[:, None, None] + r).relu()


@program(lambda t: (last(t(3, 48, 9, 8)), last(t(40, 48, 3, 3)) / 20, t(40)))
def many_channels_strided(x, w, b):
    return F.silu(F.conv2d(x, w, None, 2, 1) + b[:, None, None])


@program(lambda t: (last(t(2, 40, 9, 8)), last(t(16, 40, 2, 3)) / 15, t(16)))
def many_channels_apart(x, w, b):
    return F.conv2d(x, w, None, 1, (1, 2), (2, 3)).mul(b[:, None, None]).relu()


@program(lambda t: (last(t(2, 16, 9, 8)), last(t(16, 16, 3, 2)) / 10))
def dilated(x, w):
    return F.conv2d(x, w, None, 1, (2, 1), (2, 3)).tanh()


@program(lambda t: (t(2, 3, 16, 24), t(20, 3, 8, 8) / 14, t(20)))
def patches(x, w, b):
    return F.conv2d(x, w, None, 8).flatten(2).transpose(1, 2) + b


@program(lambda t: (last(t(2, 16, 8, 8)), last(t(24, 16, 2, 2)) / 8))
def patches_of_channels(x, w):
    return F.conv2d(x, w, None, 2).relu()


@program(lambda t: (t(2, 16, 9, 8), t(24, 16, 3, 3)[:, :, :, :2] / 10))
def in_planes(x, w):
    return F.conv2d(x, w).relu()


@program(lambda t: (last(t(2, 16, 9, 8))[:, :, 1:8, 2:7], last(t(24, 16, 3, 3)) / 10))
def sliced(x, w):
    return F.conv2d(x, w, None, 1, 1).relu()


@program(lambda t: (last(t(1, 16, 6, 6)), last(t(16, 16, 3, 3)) / 10, last(t(16, 16, 3, 3)) / 10), taken=2)
def one_after_the_other(x, w, v):
    return (F.conv2d(F.conv2d(x, w, None, 1, 1).relu(), v, None, 1, 1) + x).relu()


@program(lambda t: (last(t(1, 16, 6, 6)), last(t(16, 8, 3, 3))), taken=0)
def grouped(x, w):
    return F.conv2d(x, w, None, 1, 1, 1, 2).relu()


@program(lambda t: (last(t(1, 16, 6, 6)), last(t(16, 16, 3, 3))), taken=0)
def padded_alike(x, w):
    return F.conv2d(x, w, None, 1, "same").relu()


@program(lambda t: (last(t(2, 24, 8, 12)), t(24, 1, 3, 3) / 3, t(24)))
def depthwise(x, w, b):
    return F.silu(F.conv2d(x, w, None, 1, 1, 1, 24) + b[:, None, None])


@program(lambda t: (last(t(2, 20, 9, 7)), t(20, 1, 5, 3) / 4))
def depthwise_strided(x, w):
    return F.conv2d(x, w, None, (2, 1), (2, 0), 1, 20).relu()


@program(lambda t: (last(t(1, 20, 12, 10)), t(20, 1, 3, 3) / 4))
def depthwise_dilated(x, w):
    return F.conv2d(x, w, None, 1, 2, 2, 20)


@program(lambda t: (last(t(2, 16, 7, 7)), t(16, 1, 7, 7) / 7, t(16), t(16)))
def depthwise_before_a_row(x, w, g, b):
    return F.layer_norm(F.conv2d(x, w, None, 1, 3, 1, 16).permute(0, 2, 3, 1), (16,), g, b)


@program(lambda t: (last(t(2, 16, 8, 8)), t(32, 1, 3, 3) / 3), taken=0)
def more_channels(x, w):
    return F.conv2d(x, w, None, 1, 1, 1, 16).relu()


@program(lambda t: (last(t(0, 16, 6, 6)), last(t(16, 16, 3, 3))), taken=0)
def nothing_at_all(x, w):
    return F.conv2d(x, w, None, 1, 1).relu()


def plain():
    """Make templates known that compute convolutions by the loops of any kernel: one class each, with a name."""

    @template.template
    class Plain(Convolution):
        name = "plain convolution"

    @template.template
    class PlainDepthwise(Depthwise):
        name = "plain depthwise"
        alone = True

    return Plain.name, PlainDepthwise.name
