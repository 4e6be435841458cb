"""torch.optim: what its code does for PyTorch's own compiler, and around a step, is as it is in eager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch
from torch.autograd.profiler import record_function

from ... import torch_private
from ..tables import on_call, on_function
from ..values.constant import Constant
from ..values.containers import TupleValue

if TYPE_CHECKING:
    from ..session import Session
    from ..values.base import Value


@on_function(record_function.__enter__)
def enter_record_function(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Names a range for a profiler, which sees the kernels of a graph and not the lines of the program."""
    return args[0]


@on_function(record_function.__exit__)
def exit_record_function(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(None)


@on_function(torch_private.optimizer_value)
def get_value(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value, = args
    return value.call_method(s, "item") if value.is_tensor else value


@on_function(torch_private.stack_if_compiling)
def stack_if_compiling(s: Session, args: list[Value], kwargs: dict[str, Value]):
    return args[0]


def _tensors_by_device_and_dtype(lists, with_indices: bool = False):
    groups = {}
    for i, tensor in enumerate(lists[0]):
        key = (tensor.device, tensor.dtype)
        if key not in groups:
            groups[key] = ([[] for _ in lists], [])
        parts, indices = groups[key]
        for part, tensors in zip(parts, lists):
            if tensors:
                part.append(tensors[i])
        if with_indices:
            indices.append(i)
    return groups


def _fused_adam(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, *, lr, beta1, beta2, weight_decay,
                eps, amsgrad, maximize, decoupled) -> None:
    """The formulas of PyTorch's aten/src/ATen/native/cpu/FusedAdamKernel.cpp."""
    for i, param in enumerate(params):
        grad = -grads[i] if maximize else grads[i]
        step = state_steps[i].item() if state_steps[i].is_cpu else state_steps[i].double()
        correction1, correction2 = 1 - beta1 ** step, 1 - beta2 ** step
        if weight_decay != 0:
            if decoupled:
                param.mul_(1 - lr * weight_decay)
            else:
                grad = grad + param * weight_decay
        mean, square = exp_avgs[i], exp_avg_sqs[i]
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        if amsgrad:
            torch.maximum(max_exp_avg_sqs[i], square, out=max_exp_avg_sqs[i])
            square = max_exp_avg_sqs[i]
        denominator = (square.sqrt() / correction2 ** 0.5).add_(eps)
        rate = lr / correction1
        if isinstance(rate, torch.Tensor):
            param.sub_((rate * mean / denominator).to(param.dtype))
        else:
            param.addcdiv_(mean, denominator, value=-rate)


def _fused_sgd(params, grads, momentum_buffer_list, *, weight_decay, momentum, lr, dampening, nesterov, maximize,
               is_first_step) -> None:
    """The formulas of PyTorch's aten/src/ATen/native/cpu/FusedSGDKernel.cpp."""
    for i, param in enumerate(params):
        grad = -grads[i] if maximize else grads[i]
        if weight_decay != 0:
            grad = grad + param * weight_decay
        if momentum != 0:
            buffer = momentum_buffer_list[i]
            if is_first_step:
                buffer.copy_(grad)
            else:
                buffer.mul_(momentum).add_(grad, alpha=1 - dampening)
            grad = grad + buffer * momentum if nesterov else buffer
        param.sub_(grad * lr)


def _fused_adagrad(params, grads, state_sums, state_steps, *, lr, lr_decay, weight_decay, eps, maximize) -> None:
    """The formulas of PyTorch's aten/src/ATen/native/cpu/FusedAdagradKernel.cpp."""
    for i, param in enumerate(params):
        grad = -grads[i] if maximize else grads[i]
        if weight_decay != 0:
            grad = grad + param * weight_decay
        step = state_steps[i].item() if state_steps[i].is_cpu else state_steps[i].double()
        rate = lr / (1 + (step - 1) * lr_decay)
        state_sums[i].addcmul_(grad, grad)
        param.sub_((rate * grad / (state_sums[i].sqrt() + eps)).to(param.dtype))


def _under_a_scaler(formulas, changed, lists, grad_scale, found_inf, **options: object) -> None:
    """A fused step that takes the scale out of the gradients, where there is one, and leaves everything as it is where
    ``found_inf`` says so. ``changed``: which of ``lists``, besides the gradients, it writes."""
    grads = lists[1] if grad_scale is None else [grad / grad_scale for grad in lists[1]]
    lists = list(lists)
    worked = [[None if t is None else t.clone() for t in tensors] if k in changed else tensors
              for k, tensors in enumerate(lists)]
    worked[1] = grads
    formulas(*worked, **options)
    skipped = None if found_inf is None else found_inf.reshape(()) == 1
    for k in (*changed, 1) if grad_scale is not None else changed:
        for old, new in zip(lists[k], worked[k]):
            if old is not None:
                old.copy_(new if skipped is None else torch.where(skipped, old, new))


def _fused(formulas: Callable, changed: tuple[int, ...], **more: bool) -> Callable:
    def call(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
        scaled = [kwargs.pop(name, Constant(None)) for name in ("grad_scale", "found_inf")]
        options = {**kwargs, **{k: Constant(v) for k, v in more.items()}}
        if all(given.is_const() and given.const(s) is None for given in scaled):
            s.inline(s.wrap_raw(formulas), args, options)
        else:
            lists, written = TupleValue(list(args)), TupleValue([Constant(k) for k in changed])
            s.inline(s.wrap_raw(_under_a_scaler), [s.wrap_raw(formulas), written, lists, *scaled], options)
        return Constant(None)

    return call


on_call(torch_private.fused_steps["adam"])(_fused(_fused_adam, (0, 2, 3, 4), decoupled=False))
on_call(torch_private.fused_steps["adamw"])(_fused(_fused_adam, (0, 2, 3, 4), decoupled=True))
on_call(torch_private.fused_steps["sgd"])(_fused(_fused_sgd, (0, 2)))
on_call(torch_private.fused_steps["adagrad"])(_fused(_fused_adagrad, (0, 2)))


def _check_and_unscale(grads, found_inf, inverse) -> None:
    """What aten/src/ATen/native/cpu/AmpGradScalerKernels.cpp does to each gradient."""
    for grad in grads:
        found_inf.copy_(torch.where(torch.isfinite(grad).all(), found_inf, 1.0))
        grad.mul_(inverse.reshape(()))


def _update_scale(scale, tracker, found_inf, growth, backoff, interval) -> None:
    """The formulas of aten/src/ATen/native/cpu/AmpGradScalerKernels.cpp."""
    infinite = found_inf.reshape(scale.shape) != 0
    grown = (scale.double() * growth).to(scale.dtype)
    steps = tracker + 1
    due = steps == interval
    scale.copy_(torch.where(infinite, (scale.double() * backoff).to(scale.dtype),
                            torch.where(due & torch.isfinite(grown), grown, scale)))
    tracker.copy_(torch.where(infinite | due, 0, steps))


@on_call(torch_private.unscale_)
def check_and_unscale(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Constant:
    s.inline(s.wrap_raw(_check_and_unscale), args, kwargs)
    return Constant(None)


@on_call(torch_private.update_scale_)
def update_scale(s: Session, args: list[Value], kwargs: dict[str, Value]):
    s.inline(s.wrap_raw(_update_scale), args, kwargs)
    return args[0]


@on_call(torch_private.group_tensors)
def group_tensors(s: Session, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return s.inline(s.wrap_raw(_tensors_by_device_and_dtype), args, kwargs)
