"""Operations that write memory which they read, refusals of such writes, and results that have to be new memory."""

import torch
from frame_harness import Cases, said, sequence

cases = Cases()
VECTOR, MATRIX = torch.arange(3.0), torch.arange(6.0).view(2, 3)


@cases(VECTOR, fullgraph=False, raises=True)
def writing_where_the_same_memory_is_read(x):
    x[:1].add_(x[1:2])
    x.mul_(x)
    x.mul_(x[0])


@cases(VECTOR, fullgraph=False)
def a_tensor_of_a_tensor_is_a_copy(x):
    y = torch.tensor(x)
    x.add_(1)
    return y, torch.as_tensor(x) is x


@cases(MATRIX, fullgraph=False)
def copying_within_one_tensor(x):
    x[0].copy_(x[1])
    try:
        x.copy_(x[1][0])
    except RuntimeError as error:
        return str(error)


@cases(VECTOR, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), fullgraph=False)
def in_place_operations_that_read_what_they_write(x, y):
    return [said(call) for call in (lambda: x[1].mul_(x.detach()), lambda: x[:2].add_(x[1:]), lambda: x[:2].mul_(x),
                                    lambda: y[0].add_(y), lambda: y.add_(y.t()))]


@cases(VECTOR, fullgraph=False)
def writes_to_expanded_tensors(x):
    log = []
    for write in (lambda y: y.zero_(), lambda y: y.fill_(3), lambda y: y.masked_fill_(y > 1, 0), lambda y: y.add_(1),
                  lambda y: y.copy_(y * 2), lambda y: y.__setitem__(0, 1)):
        y = x.clone().expand(2, -1)
        try:
            write(y)
        except RuntimeError as error:
            log.append(str(error))
        log.append(y)
    return log


@cases(torch.tensor(True), torch.tensor(2.0), torch.tensor(3))
def reductions_of_nothing_are_new_tensors(b, x, n):
    return b, b.any(0), b.all(), x, x.prod(0), n, n.prod(), x.amax(0), x.sum(0)


test_programs = cases.test()


def test_in_place_operations_on_arguments_that_share_memory():
    def f(x, y):
        return said(lambda: y.mul_(x))

    def steps():
        x = torch.arange(3.0)
        return [(x, x[1]), (x, x[:2]), (x, x)]

    sequence(lambda: f, steps())


def test_a_refusal_of_one_layout_says_nothing_of_others():
    zero = torch.tensor(0.0)

    def make():
        def f(x, log):
            try:
                x.expand(2, -1).mul_(zero)
            except RuntimeError as error:
                log.append(str(error))
            return x.sum()

        return f

    sequence(make, [(torch.arange(3.0), []), (torch.arange(6.0).view(2, 3), []), (torch.arange(3.0).view(1, 3), [])])
