"""Every private name of PyTorch that the compiler relies on, looked up here and nowhere else.

A name is private if a part of its path begins with an underscore: it may change with any release. Each is one
assignment here, which says what it is used for and what happens where a PyTorch does not have it. One that nothing can
replace is ``required``: without it the functions are run in eager (see ``versions.py``, which reads ``missing``).
Without one that is ``optional`` something is slower, breaks the graph or is left to eager; ``Absent`` then stands for
it, which can be a key of a table and is never found there.

The C++ sources use PyTorch's own headers, which are as private.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import inspect
import sys
import types
from typing import Any, Callable, NoReturn

import torch
from torch.autograd import forward_ad

from .errors import CompileError

missing: dict = {}  # path -> what it is used for, of the required names that this PyTorch lacks
absent: dict = {}   # path -> what happens without it, of the optional ones


class Absent:
    """Stands for a name that this PyTorch lacks."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __bool__(self) -> bool:
        return False

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise CompileError(f"torch {torch.__version__} has no torch.{self.path}, which the compiler uses; `python -m "
                           "jit doctor` says which versions are supported")

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.path}.{name}")


def _look_up(path: str) -> Any:
    """The object at a dotted path below ``torch``. Raises AttributeError or ImportError."""
    found = torch
    parts = path.split(".")
    for i, part in enumerate(parts):
        try:
            found = getattr(found, part)
        except AttributeError:
            if type(found) is not types.ModuleType:
                raise
            found = importlib.import_module(".".join(("torch", *parts[:i + 1])))
    return found


def required(path: str, use: str) -> Any:
    """A name without which nothing is compiled."""
    try:
        return _look_up(path)
    except (AttributeError, ImportError):
        missing[path] = use
        return Absent(path)


def optional(path: str, use: str, without: str, otherwise: Any = None) -> Any:
    """A name that something can do without: ``otherwise`` takes its place, if it is given."""
    try:
        return _look_up(path)
    except (AttributeError, ImportError):
        if torch.version.cuda is not None or "cuda" not in path:  # a PyTorch without CUDA lacks them by rights
            absent[path] = without
        return Absent(path) if otherwise is None else otherwise


def _matching(prefix: str, suffix: str = "") -> dict:
    """The functions of ``torch._C`` by what is between a prefix and a suffix in their names."""
    return {name[len(prefix):len(name) - len(suffix)]: getattr(torch._C, name)
            for name in dir(torch._C) if name.startswith(prefix) and name.endswith(suffix)}


_BREAK = "a program that calls it breaks the graph"

# -- tensors ------------------------------------------------------------------------------------------------------

TensorBase = required("_C.TensorBase", "the class whose C methods are bound to operations")
dispatch_keys = required("_C._dispatch_keys", "the dispatch keys of a tensor, which its guard compares")
set_version_counter = required("_C._autograd._unsafe_set_version_counter",
                               "takes back what a graph has added to the version counter of an input")
is_view = required("Tensor._is_view", "whether writes to a returned tensor reach another one that requires grad")
shallow_copies = optional("_has_compatible_shallow_copy_type", "Module.to asks it of each parameter", _BREAK)
fused_attention_choice = optional("_fused_sdp_choice", "which kernel eager takes for attention on a GPU",
                                  "attention that has a gradient is made of products",
                                  lambda *args, **kwargs: 0)


set_creation_meta = optional("_C._autograd._set_creation_meta", "which views autograd refuses to change in place",
                             "one of several views of a changed argument may be changed in place",
                             lambda view, meta: None)
creation_meta = optional("_C._autograd.CreationMeta", "which views autograd refuses to change in place", "the same")


def one_of_several(view: torch.Tensor) -> torch.Tensor:
    """``view``, which autograd is told to be one of several results of an operation."""
    if view._is_view() and torch.is_grad_enabled():
        # Asking makes it anew where the base has been written since, which is refused to one of several.
        view.grad_fn  # noqa: B018
        set_creation_meta(view, creation_meta.MULTI_OUTPUT_NODE)
    return view


def storage_id(tensor: torch.Tensor) -> int:
    """What tensors that share memory have in common; their address does not tell for ones without data."""
    return tensor.untyped_storage()._cdata


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was written."""
    return tensor._version


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that a view is of, or None."""
    return tensor._base


def below_autograd() -> bool:
    """Whether autograd sees nothing of what is called here, as in a ``__torch_dispatch__``."""
    return _is_key_excluded(_KEY_OF_VIEWS)


def in_forward_mode() -> bool:
    """Whether a tensor may be dual: where PyTorch does not say the level, each tensor is asked. Below autograd none can
    be asked, and no tangent counts."""
    return getattr(forward_ad, "_current_level", 0) >= 0 and not below_autograd()


for _path, _use in (("Tensor._version", "version counters"), ("Tensor._base", "bases of views"),
                    ("UntypedStorage._cdata", "identity of storages")):
    required(_path, _use)

# -- operators ----------------------------------------------------------------------------------------------------

OpOverload, OpOverloadPacket = type(torch.ops.aten.add.Tensor), type(torch.ops.aten.add)
NAMESPACES = (
    required("_C._VariableFunctions", "the functions torch.* that are implemented in C"),
    *(optional(f"_C.{name}", "C functions of a namespace", "its functions break the graph", types.SimpleNamespace())
      for name in ("_nn", "_fft", "_linalg", "_special")))
has_kernel_for_key = required("_C._dispatch_has_kernel_for_dispatch_key",
                              "whether an operator is composed, and may return a view; which operators autocast casts")
COMPOSITES = tuple(required(f"_C.DispatchKey.Composite{kind}Autograd",
    "whether an operator is made of others, and may return a view") for kind in ("Implicit", "Explicit"))
_written_in_python = optional("_library.custom_ops.OPDEFS", "which operators torch.nn itself defines in Python",
                              "those are taken for operators of the program's own", {})
_triton_operators = optional("_library.triton.triton_ops_to_kernels", "which operators triton_op has made",
                             "their bodies are not followed", {})
any_aliased = optional("_C._any_output_is_alias_to_input_or_output", "whether a kernel of a custom operator returns "
                       "memory that it was given", "such kernels are called through their operators", None)
refuse_alias = optional("_library.utils._c_check_aliasing_constraint", "the error for such a kernel",
                        "as above", Absent("the check of aliases"))
foreach_neg_ = required("_foreach_neg_", "shows whether foreach functions that work in place return their list")
# What pybind11 keeps as __self__ of its functions.
FunctionRecord = type(getattr(optional("_C._get_operation_overload", "any function made by pybind11",
                                       "their __self__ is taken for an owner"), "__self__", None))

# Private operators of aten that graphs call by name: their backward or training forms, whose public operators do not
# give what a backward reads. Where one is missing, compiling what needs it fails inside: one warning, and that function
# runs in eager.
OPERATORS = frozenset("""
_to_copy _index_put_impl _cdist_backward _pdist_backward _ctc_loss _ctc_loss_backward _histogramdd_bin_edges
_adaptive_avg_pool2d_backward
_histogramdd_from_bin_cts _histogramdd_from_bin_tensors _scaled_dot_product_attention_math
_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward _scaled_dot_product_efficient_attention
_scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention
_scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu
_scaled_dot_product_flash_attention_for_cpu_backward
_efficient_attention_forward _efficient_attention_backward _flash_attention_forward _flash_attention_backward
""".split())


def module_of_operator(name: str) -> str:
    """The module in which an operator is defined by ``torch.library.custom_op``; empty for all others."""
    made = _written_in_python.get(name)
    return getattr(getattr(made, "_init_fn", None), "__module__", None) or ""


def custom_operator(name: str) -> Any:
    """What ``torch.library.custom_op`` knows of an operator that it has made; None of others."""
    made = _written_in_python.get(name)
    return made if hasattr(made, "_opoverload") and hasattr(made, "_backend_fns") else None


def operator_of(name: str) -> Any:
    """The default overload of an operator by its name, such as ``mylib::op``."""
    namespace, _, plain = name.partition("::")
    return getattr(getattr(torch.ops, namespace), plain).default


def is_triton_operator(name: str) -> bool:
    """Whether ``torch.library.triton_op`` has made an operator."""
    return name in _triton_operators


def registered_kernel(fn: Any) -> Any:
    """The program's function in the wrappers that PyTorch puts around kernels of operators."""
    while isinstance(fn, types.FunctionType) and (fn.__module__ or "").startswith("torch._library."):
        inner = dict(zip(fn.__code__.co_freevars, fn.__closure__ or ())).get("fn")
        if inner is None:
            break
        fn = inner.cell_contents
    return fn


def schema(op: Any) -> Any:
    """The ``FunctionSchema`` of an ``OpOverload``."""
    return op._schema


def overloads_of(fn: Any) -> list:
    """An operator's overload alone, or all of a packet's."""
    return [fn] if isinstance(fn, OpOverload) else [getattr(fn, name) for name in fn.overloads()]


if not hasattr(torch.ops.aten.add.Tensor, "_schema"):
    missing["OpOverload._schema"] = "argument names and aliasing of operators"

# -- modes and transforms that see every operation ----------------------------------------------------------------

why_no_hooks, forbid_hooks, allow_hooks = (
    required(f"_C._autograd._saved_tensors_hooks_{what}", "asks eager where hooks of saved tensors are disabled")
    for what in ("get_disabled_error_message", "disable", "enable"))
run_backward = optional("autograd.graph._engine_run_backward", "gradients without loading PyTorch's symbolic sizes",
                        "torch.autograd.grad loads them")
peek_transform = required("_C._functorch.peek_interpreter_stack", "refuses to capture inside a transform of torch.func")
is_transformed = required("_C._functorch.is_functorch_wrapped_tensor",
                          "refuses tensors that belong to a transform of torch.func")
function_modes = required("overrides._get_current_function_mode_stack", "refuses to capture under a TorchFunctionMode")
dispatch_modes = required("_C._len_torch_dispatch_stack", "refuses to capture under a TorchDispatchMode")
DefaultDevice = optional("utils._device.DeviceContext", "the mode of torch.set_default_device, which is known",
                         "under it functions run in eager", Absent)
WithoutTorchFunction = required("_C.DisableTorchFunction",
                                "takes the compiler's own tensors out of the program's modes")
DispatchMode = required("utils._python_dispatch.TorchDispatchMode",
                        "records the views that an operator made of others makes")
push_mode = optional("_C._push_on_torch_function_stack", "a mode is entered in captured code", _BREAK)
pop_mode = optional("_C._pop_torch_function_stack", "a mode is left in captured code", _BREAK)
in_function_mode = optional("_C._is_torch_function_mode_enabled", "whether a mode was entered in captured code", _BREAK)
# -- tensors of classes that have a say in operations -------------------------------------------------------------

make_wrapper = required("Tensor._make_wrapper_subclass", "makes the stand-ins of calls with tensors of subclasses")
make_subclass = optional("Tensor._make_subclass", "makes a tensor of a subclass", _BREAK)
no_function = required("_C._disabled_torch_function_impl", "tells which classes have a __torch_function__")
no_dispatch = required("_C._disabled_torch_dispatch_impl", "tells which classes have a __torch_dispatch__")
FunctionState = required("_C._TorchFunctionState", "calls with tensors of subclasses")
get_function_state = required("_C._get_torch_function_state", "calls with tensors of subclasses")
set_function_state = required("_C._set_torch_function_state", "calls with tensors of subclasses")
WithoutFunctionOfClasses = required("_C.DisableTorchFunctionSubclass", "calls with tensors of subclasses")
WithTorchFunction = required("_C._EnableTorchFunction", "lets proxies see the calls of Python functions")
function_enabled = optional("_C._is_torch_function_enabled", "asked by PyTorch's Python code", _BREAK)
has_function, has_function_unary, has_function_variadic = (
    optional(f"_C._has_torch_function{end}", "asked by PyTorch's Python code", _BREAK)
    for end in ("", "_unary", "_variadic"))
push_dispatch_mode = required("_C._push_on_torch_dispatch_stack", "calls with tensors of subclasses")
pop_dispatch_mode = required("_C._pop_torch_dispatch_stack", "calls with tensors of subclasses")
included_keys = required("_C._dispatch_tls_local_include_set", "calls with tensors of subclasses")
excluded_keys = required("_C._dispatch_tls_local_exclude_set", "calls with tensors of subclasses")
_is_key_excluded = required("_C._dispatch_tls_is_dispatch_key_excluded", "whether autograd sees a call")
_KEY_OF_VIEWS = required("_C.DispatchKey.ADInplaceOrView", "whether autograd sees a call")
ForceKeys = required("_C._ForceDispatchKeyGuard", "calls with tensors of subclasses")
convert = optional("_tensor._convert", "gives the results of functions the class of their arguments", _BREAK)
correct_aliasing = optional("utils._python_dispatch.return_and_correct_aliasing", "a __torch_dispatch__ calls it",
                            _BREAK)

# followed; without it torch.vmap is a break.
check_vmap_randomness = torch.vmap.__globals__.get("_check_randomness_arg", Absent("vmap's check of randomness"))
# Transformers enters it around vmap; unknown modes break the graph.
INDEX_MODE = ("torch._dynamo._trace_wrapped_higher_order_op", "TransformGetItemToIndex")
# Attention with functions of the program's own, which is made of products here; it is never imported for that, since
# PyTorch's own compiler comes with it.
FLEX_ATTENTION = ("torch._higher_order_ops.flex_attention", "FlexAttentionHOP.__call__")
FLEX_MATRIX, FLEX_LISTS = (("torch.nn.attention.flex_attention", name)
                           for name in ("_ordered_to_dense", "_dense_to_ordered"))
# The transforms of torch.func are PyTorch's own Python code, which is followed; these are what it rests on, and what in
# it is done otherwise. The names of functions of its modules:
TRANSFORMS, MAPS = "torch._functorch.eager_transforms", "torch._functorch.vmap"
pytree = required("utils._pytree", "what transforms and loops take their arguments apart by")
MAPS_BELOW = "torch._functorch.predispatch"
TRANSFORMED = "torch._functorch.apis"
LOOPS = "torch._higher_order_ops."  # the modules of ``map``, ``scan`` and ``while_loop``
_WITHOUT = "transforms of torch.func are a break"
map_begins, map_ends, map_enters, map_leaves, is_mapped = (
    optional(f"_C._functorch.{name}", "a step of torch.vmap, which is followed", _WITHOUT)
    for name in ("_vmap_increment_nesting", "_vmap_decrement_nesting", "_add_batch_dim", "_remove_batch_dim",
                 "is_batchedtensor"))
level_of_map, mapped_dim, of_all_slices = (
    optional(f"_C._functorch.{name}", "what torch.vmap makes of a tensor", _WITHOUT)
    for name in ("maybe_get_level", "maybe_get_bdim", "get_unwrapped"))
grad_begins, grad_ends, grad_enters, grad_leaves, may_require_grad, lets_require_grad = (
    optional(f"_C._functorch.{name}", "a step of torch.func.grad, which is followed", _WITHOUT)
    for name in ("_grad_increment_nesting", "_grad_decrement_nesting", "_wrap_for_grad", "_unwrap_for_grad",
                 "get_inplace_requires_grad_allowed", "set_inplace_requires_grad_allowed"))

# Class and module names of Python code in PyTorch that is known by where it stands; elsewhere it is followed like other
# code.
TORCH_COMPILER = "torch._dynamo"
_FRAMES, _DECORATORS = f"{TORCH_COMPILER}.eval_frame", f"{TORCH_COMPILER}.decorators"
TORCH_COMPILED = (_FRAMES, "_TorchDynamoContext.__call__.<locals>.compile_wrapper")
TORCH_MODULE_CALL = (_FRAMES, "OptimizedModule.__call__")
TORCH_HIDDEN = (_FRAMES, "DisableContext.__call__.<locals>._fn")
TORCH_LEFT_ALONE = (f"{TORCH_COMPILER}.external_utils",
                    "get_nonrecursive_disable_wrapper.<locals>.nonrecursive_disable_wrapper")
TORCH_LEAF = (_DECORATORS, "leaf_function.<locals>.inner")
TORCH_BREAKS = tuple((_DECORATORS, name) for name in ("graph_break", "skip_frame", "step_unsupported"))
TORCH_FOLLOWED = tuple((_DECORATORS, name) for name in (
    "mark_dynamic", "maybe_mark_dynamic", "mark_unbacked", "mark_static", "mark_static_address"))
TORCH_CONTROL = tuple((f"{TORCH_COMPILER}{module}", name) for module, names in (
    ("", ("reset", "reset_code_caches", "set_recursion_limit")),
    (".eval_frame", ("optimize", "optimize_assert", "explain", "explain.<locals>.inner", "export",
                     "export.<locals>.inner", "reset_code")),
    (".decorators", ("run", "disable", "allow_in_graph", "forbid_in_graph", "substitute_in_graph",
                     "_disallow_in_graph_helper.<locals>.inner", "nonstrict_trace", "allow_c_slot")),
    (".backends.registry", ("list_backends", "lookup_backend", "register_backend", "set_default_backend",
                            "get_default_backend"))) for name in names)
TORCH_REGION = ("torch._higher_order_ops.invoke_subgraph", "invoke_subgraph_placeholder")
TORCH_NOTED_INIT, TORCH_NOTED_STATE = ((f"{TORCH_COMPILER}.mutation_guard",
                                        f"install_generation_tagging_init.<locals>.patched_{name}")
                                       for name in ("init", "setstate"))
# What decorators of PyTorch's compiler write at functions: ``assume_constant_result``, ``forbid_in_graph``, ``disable``
# and ``compile``; the last two also the id of the function that they make, by which a copied mark is told.
MARKED_CONSTANT, TORCH_FORBIDDEN = "_dynamo_marked_constant", "_dynamo_forbidden"
TORCH_DISABLED, TORCH_REASON = "_torchdynamo_disable", "_torchdynamo_disable_msg"
TORCH_ORIGINAL, TORCH_MARKED_ID = "_torchdynamo_orig_callable", "_torchdynamo_wrapper_id"
# Where it keeps what ``allow_in_graph``, ``disallow_in_graph`` and ``substitute_in_graph`` were called for.
TORCH_RULES, TORCH_ALLOWED, TORCH_DISALLOWED = (f"{TORCH_COMPILER}.trace_rules", "_allowed_callable_ids",
                                                "_disallowed_callable_ids")
# Modules for whose functions PyTorch itself says to its compiler that they are not for its graphs.
TORCH_OWN = (TORCH_COMPILER, "torch._functorch", "torch.nn.attention")
TORCH_SUBSTITUTES = (f"{TORCH_COMPILER}.variables.functions", "PolyfilledFunctionVariable", "_get_polyfill_handlers")
TORCH_SUBSTITUTE = "__torch_dynamo_polyfill__"
# Modules whose Python functions only compute on their tensor arguments.
PYTHON_OPERATIONS = frozenset(("torch.functional", "torch.nn.functional", "torch._tensor", "torch.special"))


def hookless_code() -> types.CodeType | None:
    """The code around transforms of torch.func that refuses hooks on saved tensors, or None; without it they are a
    break."""
    return getattr(torch.func.vjp.__globals__.get("_vjp_with_argnums"), "__code__", None)


def mapped_code() -> types.CodeType | None:
    """The code of what ``torch.vmap`` returns, or None; without it a call of that is a break."""
    return next((c for c in torch.vmap.__code__.co_consts if isinstance(c, types.CodeType) and c.co_name == "wrapped"),
                None)


# -- global state -------------------------------------------------------------------------------------------------

set_grad_enabled = required("_C._set_grad_enabled", "what torch.no_grad and the like call, followed in captured code")


class _AutocastOff(contextlib.ExitStack):
    """Autocast off for the devices that have kernels here."""

    def __enter__(self) -> Any:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                self.enter_context(torch.autocast(device, enabled=False))
        return super().__enter__()


WithoutAutocast = optional("_C._DisableAutocast", "turns autocast off, for graphs that have their casts in them",
                           "torch.autocast does it", _AutocastOff)
deterministic = tuple(optional(f"_C.{name}", "torch.are_deterministic_algorithms_enabled() asks it", _BREAK)
                      for name in ("_get_deterministic_algorithms", "_get_deterministic_algorithms_warn_only"))
gpu_count = optional("_C._cuda_getDeviceCount", "torch.cuda.is_available() asks it", _BREAK)
current_gpu = optional("_C._cuda_getDevice", "torch.cuda.current_device() asks it", _BREAK)
# name -> what tells it, what sets it.
cudnn_switches = {name: tuple(optional(f"_C._{verb}_cudnn_{name}", "torch.backends.cudnn calls it", _BREAK)
                              for verb in ("get", "set"))
                  for name in ("enabled", "benchmark", "deterministic", "allow_tf32")}
autocast_queries = tuple(optional(f"_C.{name}", "torch.autocast() asks it", _BREAK)
                         for name in ("_is_autocast_available", "_get_privateuse1_backend_name"))
# In builds with CUDA alone.
GpuProperties = getattr(torch._C, "_CudaDeviceProperties", type(None))
is_capturing_stream = optional("cuda.graphs._cuda_isCurrentStreamCapturing",
                               "torch.cuda.is_current_stream_capturing() asks it", _BREAK)
# torch.nn.attention.sdpa_kernel calls both; a kind that has only one of them breaks the graph.
attention_setters, attention_getters = _matching("_set_sdp_use_"), _matching("_get_", "_sdp_enabled")
current_raw_stream = optional("_C._cuda_getCurrentRawStream", "doctor's check that PyTorch tells its CUDA stream",
                              "GPU kernels cannot be run")
begin_pool, end_pool, release_pool = (
    optional(f"_C._cuda_{name}", "where the memory of CUDA graphs comes from", "no CUDA graphs are recorded")
    for name in ("beginAllocateCurrentThreadToPool", "endAllocateToPool", "releasePool"))
cuda_sleep = optional("cuda._sleep", "keeps a GPU waiting while what is timed is launched", "no templates are timed")

# Queries of which a captured region knows the answer.
ANSWERS = {
    None: tuple(optional(f"_C.{name}", "asked by PyTorch's Python code", _BREAK)
                for name in ("_get_tracing_state", "_log_api_usage_once")),
    False: (*(optional(f"_C.{name}", "asked by PyTorch's Python code", _BREAK) for name in (
        "_is_tracing", "_are_functorch_transforms_active")),
        *filter(None, [getattr(torch._C, "_is_fake_tensor", None)])),  # torch 2.15
}

# What else is asked of the state of the process, by functions that change nothing and take nothing. Switches that
# programs set in compiled functions are tracked states, and none of these.
QUESTIONS = tuple(optional(f"_C.{name}", "asked by PyTorch's Python code", _BREAK) for name in (
    "_autograd._profiler_enabled", "_get_cublas_allow_tf32", "_len_torch_dispatch_stack",
    "_autograd._saved_tensors_hooks_get_disabled_error_message", "_cuda_isInBadFork"))

# -- gradients ----------------------------------------------------------------------------------------------------


def _function_apply() -> Callable:
    """Up to torch 2.13 it is written in Python, from 2.14 on in C: the function, or the descriptor of the class
    method."""
    raw = vars(torch.autograd.Function).get("apply")
    return getattr(raw, "__func__", raw) or required("autograd.Function.apply", "calls of a torch.autograd.Function")


function_apply = _function_apply()
# Attributes of a leaf; one that is missing is a break.
gradient_hooks = ("_backward_hooks", "_post_accumulate_grad_hooks")


def process_groups() -> Any:
    """The object whose ``default_pg`` is set while there are process groups, or None where torch.distributed was not
    built."""
    world = getattr(getattr(torch, "distributed", None), "distributed_c10d", None)
    return getattr(world, "_world", None)


# of tensors that are spread over processes; ``torch.distributed.tensor`` is imported by the program
make_wrapper = required("Tensor._make_wrapper_subclass", "makes the stand-ins of calls with tensors of subclasses")
no_function = required("_C._disabled_torch_function_impl", "tells which classes have a __torch_function__")


# of tensors of the jagged layout; their module is imported by the program
InferenceMode = optional("_C._InferenceMode", "tensors of the jagged layout", _BREAK)
has_kernel = optional("_C._dispatch_has_kernel_for_dispatch_key",
                      "operators that tensors of the jagged layout lack", _BREAK)
view_from_jagged = optional("_nested_view_from_jagged", "attention of tensors of the jagged layout", _BREAK)
SDPAParams = optional("_C._SDPAParams", "attention of tensors of the jagged layout", _BREAK)
attention_checks = tuple(_matching("_can_use_", "_attention").values())
NESTED = "torch.nested._internal.nested_tensor"
WEAK = "torch.utils.weak"


def composite_key(op: Any) -> Any:
    """The dispatch key of the kernel of an operator that is composed of others, as the jagged layout has it; None."""
    keys = torch._C.DispatchKey.CompositeImplicitAutogradNestedTensor, torch._C.DispatchKey.CompositeImplicitAutograd
    return next((k for k in keys if has_kernel(op.name(), k)), None)


def takes_strided_impl(function: Any) -> bool:
    """Whether a gradient may take a tensor of the jagged layout for one of the other nested layout, which ends the
    process: in what is recorded at ``function``, a node of autograd's graph, or before it."""
    seen: set = set()
    stack = [function]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            if node.name().startswith("SplitWithSizesBackwardAutogradNestedTensor"):
                return True
            stack += [before for before, _ in node.next_functions]
    return False


def nested_int(tensor: Any, factor: int) -> Any:
    """The size that stands for the lengths that ``tensor`` has, or has the ends of."""
    return sys.modules[NESTED].get_tensor_symint(tensor, coeff=factor)


def new_jagged(cls: Any, values: Any, offsets: Any, lengths: Any, ragged_idx: int, cache: dict) -> Any:
    return cls(values, offsets, lengths=lengths, _ragged_idx=ragged_idx, _metadata_cache=cache)


def make_jagged(cls: type, sizes: Any, strides: Any, dtype: Any, device: Any, requires_grad: bool) -> Any:
    """A tensor without data of the jagged layout."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.NestedTensor).add(torch._C.DispatchKey.AutogradNestedTensor)
    return make_wrapper(cls, sizes, strides, 0, torch.contiguous_format, dtype, torch.jagged, device, False,
                        requires_grad, "sizes", False, True, keys, storage_size=0)


def of_dtensors() -> types.SimpleNamespace:
    """What is private of DTensors: the class of their specs, that of what these say of the whole, and the rules by
    which operators are done with them."""
    spec = importlib.import_module("torch.distributed.tensor._dtensor_spec")
    rules = importlib.import_module("torch.distributed.tensor").DTensor._op_dispatcher
    return types.SimpleNamespace(Spec=spec.DTensorSpec, Meta=spec.TensorMeta, rules=rules,
                                 propagate=rules.sharding_propagator.propagate,
                                 apart=frozenset(rules._custom_op_handlers) | frozenset(rules._random_ops),
                                 sometimes_apart=frozenset(getattr(rules, "_custom_op_handlers_with_condition", ())))


DTENSOR_SPEC, DTENSOR_PART = "_spec", "_local_tensor"  # their attributes


def spec_of(tensor: Any) -> Any:
    return tensor._spec


def part_of(tensor: Any) -> torch.Tensor:
    """What this process has of a DTensor."""
    return tensor._local_tensor


group_of_name = optional("_C._distributed_c10d._resolve_process_group", "the group of processes behind a name", _BREAK)
# Collectives of one tensor that have a form for several, by the backends that have that too.
COALESCED_COLLECTIVES = {"all_reduce": ("nccl", "gloo"), "all_gather_into_tensor": ("nccl",),
                         "reduce_scatter_tensor": ("nccl",)}


def coalesces(group: str, collective: str) -> bool:
    """Whether the processes of the group so named can do several of a collective at once."""
    try:
        backend = torch.distributed.get_backend(group_of_name(group))
    except (RuntimeError, ValueError):
        return False
    return backend in COALESCED_COLLECTIVES[collective]


module_call = required("nn.Module._call_impl", "the call of a module with hooks of FSDP is a break")


def functional_collective(name: str) -> Any:
    """One of the operators that start a collective, or that wait for it."""
    return getattr(torch.ops._c10d_functional, name)


def fsdp_states() -> type | None:
    """The class whose methods are the hooks of FSDP2; None where this PyTorch has none, or another one."""
    found = optional("distributed.fsdp._fully_shard._fsdp_state.FSDPState", "the hooks of modules that FSDP shards",
                     "they are followed, and break the graph")
    return found or None


def fsdp_hooks(states: type) -> list[types.FunctionType]:
    found = [vars(states).get(name) for name in ("_pre_forward", "_post_forward")]
    return [hook for hook in found if isinstance(hook, types.FunctionType)]


# What ``runtime/sharded_groups.py`` does in the place of FSDP's: the functions whose work it was read from, by module.
_GROUP_FUNCTIONS = {
    "_fsdp_collectives": (
        "foreach_all_gather", "_get_param_all_gather_inputs", "_get_all_gather_input_metadatas",
        "foreach_all_gather_copy_out", "foreach_reduce", "foreach_reduce_scatter_copy_in", "_div_if_needed",
        "_get_gradient_divide_factors", "all_gather_copy_in_cuda", "split_with_sizes_copy", "chunk_cat",
        "DefaultAllGather.__call__", "DefaultReduceScatter.__call__"),
    "_fsdp_param": (
        "FSDPParam.init_all_gather_outputs", "FSDPParam.init_unsharded_param", "FSDPParam.to_sharded",
        "FSDPParam.to_unsharded", "FSDPParam._setattr_on_modules", "FSDPParam.accumulate_unsharded_grad_if_needed",
        "FSDPParam.alloc_all_gather_outputs", "FSDPParam.free_unsharded_param", "FSDPParam.all_gather_inputs",
        "FSDPParam.unsharded_grad_data", "unsafe_setattr_param", "set_requires_grad_if_needed"),
    "_fsdp_param_group": (
        "FSDPParamGroup.unshard", "FSDPParamGroup.wait_for_unshard", "FSDPParamGroup.post_backward",
        "FSDPParamGroup.reshard", "FSDPParamGroup._to_sharded", "FSDPParamGroup._to_unsharded",
        "FSDPParamGroup._wait_for_post_backward", "FSDPParamGroup.finalize_backward",
        "FSDPParamGroup._register_post_backward_hook", "FSDPCommContext.get_all_gather_streams"),
}
# Digests of the names that these functions use, which change when FSDP does anything else.
_KNOWN_GROUPS = {"dd74e6f554d5d775": "torch 2.11", "2a2e0f0b4c270928": "torch 2.12", "c88396edfb2a629a": "torch 2.13",
                 "9820dfcbc1480df4": "torch 2.14"}


chunk_cat = optional("_chunk_cat", "puts the parts of tensors for each process behind each other",
                     "the groups of modules that FSDP shards are gathered by FSDP itself")


def recorded(label: str) -> contextlib.AbstractContextManager:
    """A range for the profiler, while one is there."""
    if torch.autograd.profiler._is_profiler_enabled:
        return torch.profiler.record_function(label)
    return _NO_RANGE


_NO_RANGE: contextlib.AbstractContextManager = contextlib.nullcontext()


def _names(code: types.CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(c) for c in code.co_consts if isinstance(c, types.CodeType)))


def groups_digest(modules: dict[str, types.ModuleType]) -> str:
    """Of the names that FSDP's functions about groups of parameters use. Raises AttributeError where one is missing."""
    used: set[str] = set()
    for module, paths in _GROUP_FUNCTIONS.items():
        for path in paths:
            found: Any = modules[module]
            for part in path.split("."):
                found = vars(found)[part] if isinstance(found, type) and part in vars(found) else getattr(found, part)
            found = inspect.unwrap(getattr(found, "fget", found))
            used |= _names(found.__code__)
    return hashlib.sha256(" ".join(sorted(used)).encode()).hexdigest()[:16]


def _single(group: Any, name: str, before: str) -> Callable:
    """A process group's collective of single tensors, whose name has changed."""
    return getattr(group, name, None) or getattr(group, before)


class _Groups:
    """The classes, states and functions of FSDP2 that its groups of parameters are made of."""

    def __init__(self, modules: dict[str, types.ModuleType]) -> None:
        groups, collectives, common = (modules[name] for name in ("_fsdp_param_group", "_fsdp_collectives",
                                                                  "_fsdp_common"))
        self.group_class, self.mesh_class = groups.FSDPParamGroup, common.FSDPMeshInfo
        self.result_class, self.state_class = collectives.AllGatherResult, groups.AllGatherState
        self.reduced_class, self.register_class = groups.ReduceScatterState, groups.RegisterPostBackwardFunction
        self.plain_gather, self.plain_reduce = collectives.DefaultAllGather, collectives.DefaultReduceScatter
        shard, training = groups.ShardedState, common.TrainingState
        self.sharded, self.unsharded = shard.SHARDED, shard.UNSHARDED
        self.forward, self.post_backward = training.FORWARD, training.POST_BACKWARD
        self.gathering_states = (training.FORWARD, training.PRE_BACKWARD)
        self.divide_factors, self.padded_size = collectives._get_gradient_divide_factors, common._get_dim0_padded_size

    @staticmethod
    def of(state: Any) -> list:
        """The groups of an FSDP state: of torch 2.11 one or none."""
        single = vars(state).get("_fsdp_param_group")
        return [single] if single is not None else list(vars(state).get("_fsdp_param_groups", ()))

    @staticmethod
    def in_transform() -> bool:
        return peek_transform() is not None

    def gather(self, comm: Any, whole: torch.Tensor, part: torch.Tensor, group: Any) -> Any:
        """An all-gather by what the program gave for it; by the process group itself where it gave nothing."""
        if type(comm) is not self.plain_gather or coalescing() or torch.is_complex(whole):
            return comm(output_tensor=whole, input_tensor=part, group=group, async_op=False)
        options = torch._C._distributed_c10d.AllgatherOptions()
        options.asyncOp = False
        work = _single(group, "all_gather_single", "_allgather_base")(whole, part, options)
        if work is not None:
            work.wait()
        return None

    def reduce_scatter(self, comm: Any, part: torch.Tensor, whole: torch.Tensor, group: Any, op: Any) -> None:
        """The like for a reduce-scatter."""
        if type(comm) is not self.plain_reduce or coalescing() or torch.is_complex(whole):
            comm(output_tensor=part, input_tensor=whole, group=group, op=op)
            return
        options = torch._C._distributed_c10d.ReduceScatterOptions()
        options.reduceOp, options.asyncOp = op, False
        work = _single(group, "reduce_scatter_single", "_reduce_scatter_base")(part, whole, options)
        if work is not None:
            work.wait()

    @staticmethod
    def free_reduced(group: Any, reduces: bool) -> None:
        """Let go of what earlier groups have given to be reduced, as far as FSDP does before it reduces this one."""
        context, current = group.comm_ctx, group.device_handle.current_stream
        if not hasattr(context, "reduce_scatter_states"):  # torch 2.11
            if reduces:
                if (state := context.reduce_scatter_state) is not None and state.event is not None:
                    current().wait_event(state.event)
                context.reduce_scatter_state = None
        elif group._param_group_index == group._num_param_groups - 1:
            kept = getattr(context, "reduce_scatter_max_input_buffers", 1)  # torch 2.12 keeps those of one state
            while len(states := context.reduce_scatter_states) >= kept:
                if (event := states.pop(0).event) is not None:
                    current().wait_event(event)

    def keep_reduced(self, group: Any, given: torch.Tensor, scattered: Any, stream: Any, done: Any) -> None:
        """Keep what is being reduced on another stream, and say when it is done."""
        context = group.comm_ctx
        group._post_reduce_event = done
        if hasattr(context, "reduce_scatter_states"):
            if hasattr(context, "_last_post_reduce_events"):
                context._last_post_reduce_events[stream] = done
            context.reduce_scatter_states.append(self.reduced_class(given, scattered))
        else:
            context.reduce_scatter_state = self.reduced_class(given, scattered)


def types_of_programs_are_checked() -> bool:
    """Whether FSDP annotates what it makes for a package that checks how tensors are spread over processes."""
    return bool(getattr(torch.distributed, "_is_spmd_types_available", bool)())


@functools.cache
def fsdp_groups() -> _Groups | None:
    """How FSDP2 keeps groups of parameters; None where this PyTorch does it in a way that is not known here."""
    names = (*_GROUP_FUNCTIONS, "_fsdp_common")
    modules = {name: optional(f"distributed.fsdp._fully_shard.{name}", "the groups of modules that FSDP shards",
                              "FSDP gathers and reduces them itself") for name in names}
    try:
        known = (all(modules.values()) and groups_digest(modules) in _KNOWN_GROUPS
                 and not types_of_programs_are_checked())
        return _Groups(modules) if known else None
    except AttributeError:
        return None


def coalescing() -> Any:
    """The collectives that a context manager of torch.distributed collects to do them at once, by group; None where
    this PyTorch does not say."""
    return getattr(process_groups(), "pg_coalesce_state", None)


# -- modules and optimizers ---------------------------------------------------------------------------------------

COMPILED_CALL = "_compiled_call_impl"  # where a module holds what it is called by, once ``compile()`` was called
infer_parameters = optional("nn.modules.lazy.LazyModuleMixin._infer_parameters",
                            "the first call of a lazy module runs in eager", _BREAK)
parse_to = optional("_C._nn._parse_to", "Module.to parses its arguments by it", _BREAK)
optimizer_value = optional("optim.optimizer._get_value", "reads a step counter",
                           "the code of PyTorch is followed, which asks whether it is compiled")
stack_if_compiling = optional("optim.optimizer._stack_if_compiling",
                              "makes a tensor of numbers for PyTorch's compiler alone", "likewise")
group_tensors = optional("_C._group_tensors_by_device_and_dtype", "how optimizers group their tensors", _BREAK)
fused_steps = {name: optional(f"_fused_{name}_", "the fused step of an optimizer", _BREAK)
               for name in ("adam", "adamw", "sgd", "adagrad")}
unscale_ = optional("_amp_foreach_non_finite_check_and_unscale_", "a GradScaler calls it", _BREAK)
update_scale_ = optional("_amp_update_scale_", "a GradScaler calls it", _BREAK)

# -- functions of Python in PyTorch that are done in one step -----------------------------------------------------

assert_ = optional("_assert", "assertions on values of tensors are assumptions", "they break the graph")
check_all = optional("_check_tensor_all_with", "the same for torch._check_tensor_all", "they break the graph")
reduction = required("nn._reduction", "the number of a loss's reduction")
masked = optional("masked._ops", "the steps of masked reductions", "they break the graph")
hide_from_compiler = optional("_disable_dynamo",
    "a decorator within PyTorch that hides functions from its own compiler", "what it decorates breaks the graph",
                              lambda fn: fn)
frame_actions = optional("_C._dynamo.eval_frame", "keeps the hook of PyTorch's compiler off our code",
                         "it looks at our code, which costs it time and nothing else")
