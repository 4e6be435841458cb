"""torch.optim: what its code does for PyTorch's own compiler, and around a step, is as it is in eager."""

from __future__ import annotations

import torch
from torch.autograd.profiler import record_function
from torch.optim import optimizer

from ...errors import Unsupported
from ..tables import on_call, on_function
from ..values.constant import Constant
from ..values.tensor import TensorValue


@on_function(record_function.__enter__)
def enter_record_function(s, args, kwargs):
    """Names a range for a profiler, which sees the kernels of a graph and not the lines of the program."""
    return args[0]


@on_function(record_function.__exit__)
def exit_record_function(s, args, kwargs):
    return Constant(None)


@on_function(optimizer._get_value)
def get_value(s, args, kwargs):
    value, = args
    return value.call_method(s, "item") if isinstance(value, TensorValue) else value


@on_function(optimizer._stack_if_compiling)
def stack_if_compiling(s, args, kwargs):
    return args[0]




def _tensors_by_device_and_dtype(lists, with_indices=False):
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


def _fused_adam(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, *, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize, decoupled):
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


def _fused_sgd(params, grads, momentum_buffer_list, *, weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step):
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


def _fused(formulas, **more):
    def call(s, args, kwargs):
        for name in ("grad_scale", "found_inf"):
            given = kwargs.pop(name, Constant(None))
            if not (given.is_const() and given.const(s) is None):
                raise Unsupported("a fused optimizer under a gradient scaler", kind="c-call")
        s.inline(s.wrap_raw(formulas), args, {**kwargs, **{k: Constant(v) for k, v in more.items()}})
        return Constant(None)

    return call


on_call(torch._fused_adam_)(_fused(_fused_adam, decoupled=False))
on_call(torch._fused_adamw_)(_fused(_fused_adam, decoupled=True))
on_call(torch._fused_sgd_)(_fused(_fused_sgd))


@on_call(torch._C._group_tensors_by_device_and_dtype)
def group_tensors(s, args, kwargs):
    return s.inline(s.wrap_raw(_tensors_by_device_and_dtype), args, kwargs)
