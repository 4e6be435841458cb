"""What is known of PyTorch's operators besides their schemas: one row for each, with all of it.

``op_info(name)`` gives the row; there are no other sets of names of operators. What an operator is expanded into, and
the type rules of those that stay library calls, are functions, and stand in ``ops/``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jit.graph.prim_info import IN_EACH, NOTHING

LOWER, WIDEST, OFTEN_WIDEST = "low precision", "widest operand", "widest operand, on some devices"


@dataclass(frozen=True)
class OpInfo:
    """An operator of PyTorch, or a method of its tensors.

    total: it never raises once its operands' types are right. All others may raise for the data that they meet, and are
        called although nobody reads their result.
    linear, saves: as in ``PrimInfo``.
    differentiable: for each result whether it has a gradient, where that is not so of all that take one (PyTorch:
        output_differentiability).
    autocast: of operators that autocast intercepts, in which type they run: the low precision one (``LOWER``) or the
        widest among their operands (``WIDEST``, ``OFTEN_WIDEST``: see ``Backend.autocast_widens``); others in float32.
    cast_as: the intercepted operator that it comes down to, and is cast like.
    cast_in_parts: whether autocast would intercept operators that it is composed of. None: of those with an expansion
        it would not; of others PyTorch is asked.
    factory: a function of torch that makes a tensor from no tensor. In code that is run on proxies it is recorded like
        the rest.
    made_on_cpu: makes its result on the CPU whatever the default device is.
    typed_by_run: it has no kernel for meta tensors, and its result's sizes follow from those of its arguments: a run on
        zeros tells them.
    result_like: its result is a contiguous tensor of the shape and dtype of this argument; PyTorch's kernel for meta
        tensors is missing, or says something else.
    untried: is not tried on stand-ins to find out whether eager refuses a call, or its backward: it reaches what these
        do not have, such as memory beyond the tensor's elements, or does more than to compute.
    fresh: a composite operator that is known to give new memory. Others may return an argument without saying so in
        their schema.
    images: the number of leading operands that are images, of a convolution.
    bias: the position of the bias among the arguments of a convolution.
    aligned: a product that is faster of rows that begin at whole vectors.
    out_form: the overload that writes into memory of the plan's.
    backward_equal: the names and positions of two arguments that its backward takes only where they are of the same
        shape, although the operator does not ask for that.
    deferrable: its result depends on the data, and it may be called when the graph has run.
    raises_late: and may then raise for other values than those that it was tried with.
    waits: it does nothing but wait for what has been started, and gives that.
    apart: it only starts what goes on beside the program, until there is a wait.
    lines_up: elementwise; PyTorch's rule for it inside torch.vmap is to line its operands up.
    takes_size: makes a tensor of a size from another one; inside torch.vmap each mapped tensor has one.
    each: of a ``_foreach_`` operator: the operator on single tensors that it stands for, where the name does not say
        it; None where there is none.
    over_sequences: goes over a sequence step by step, and takes one of any length.
    by_keyword: (position, name) of what that one takes by keyword alone.
    scales: (keyword of a number, position of the operand that is multiplied with it).
    """

    total: bool = False
    linear: str | None = None
    saves: tuple | None = None
    differentiable: tuple | None = None
    autocast: str | None = None
    cast_as: str | None = None
    cast_in_parts: bool | None = None
    factory: bool = False
    made_on_cpu: bool = False
    typed_by_run: bool = False
    result_like: str | None = None
    untried: bool = False
    fresh: bool = False
    images: int = 0
    bias: int | None = None
    aligned: bool = False
    out_form: str | None = None
    backward_equal: tuple[tuple[str, int], ...] = ()
    deferrable: bool = False
    raises_late: bool = False
    waits: bool = False
    apart: bool = False
    lines_up: bool = False
    takes_size: bool = False
    over_sequences: bool = False
    each: str | None = ""
    by_keyword: tuple[tuple[int, str], ...] = ()
    scales: tuple[str, int] | None = None


ROWS: dict[str, OpInfo] = {}
_UNKNOWN = OpInfo()


def op_info(name: str) -> OpInfo:
    """The row of the operator ``aten::name``, of which the namespace may be left out; of others with theirs."""
    return ROWS.get(name.removeprefix("aten::"), _UNKNOWN)


def _rows(names: str, **facts: object) -> None:
    """These facts of some operators, of which others may be told elsewhere."""
    for name in names.split():
        known = ROWS.get(name, _UNKNOWN)
        if any(getattr(known, fact) != getattr(_UNKNOWN, fact) for fact in facts):
            raise ValueError(f"{name} has two rows for one fact")
        ROWS[name] = replace(known, **facts)


_rows("""
    sort msort _scaled_dot_product_efficient_attention _scaled_dot_product_attention_math outer ger inner kron
    linalg_cross _trilinear cdist _cdist_forward pdist _pdist_forward lstm gru rnn_tanh rnn_relu native_group_norm
    rms_norm _fused_rms_norm max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d
    adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool3d adaptive_max_pool2d
    adaptive_max_pool3d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d upsample_linear1d upsample_bicubic2d upsample_trilinear3d _upsample_bilinear2d_aa
    _upsample_bicubic2d_aa reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
    replication_pad3d grid_sampler_2d grid_sampler_3d affine_grid_generator pixel_shuffle pixel_unshuffle
    channel_shuffle topk kthvalue median nanmedian mode cummax cummin cumprod logcumsumexp logsumexp trace tril
    triu diag_embed rot90 roll var_mean std_mean _softmax _log_softmax renorm trapezoid nan_to_num heaviside stft
    digamma polygamma lgamma mvlgamma igamma igammac i0 special_i0e special_i1 special_i1e special_ndtri
    special_log_ndtr special_erfcx special_zeta special_xlog1py special_entr logaddexp logaddexp2 nextafter frexp
    ldexp gcd lcm sinc xlogy angle polar view_as_complex view_as_real add sub mul neg abs sgn exp exp2 expm1 log
    log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid pow
    sum mean prod cumsum eq ne where clone conj _conj _conj_physical conj_physical resolve_conj resolve_neg real
    imag isfinite isinf isnan any all logical_and logical_or logical_xor logical_not maximum minimum fmax fmin
    hypot copysign amax amin argmax argmin flip constant_pad_nd slice_scatter select_scatter diagonal_scatter
""", total=True)
_rows("lstm gru rnn_tanh rnn_relu", over_sequences=True)
_rows("add sub", scales=("alpha", 1))
_rows("addcmul addcdiv", scales=("value", 1))
_rows("mv", total=True, linear=IN_EACH, autocast=LOWER)
_rows("dot", total=True, linear=IN_EACH, autocast=OFTEN_WIDEST)
_rows("mm", total=True, linear=IN_EACH, autocast=LOWER, aligned=True, out_form="out")
_rows("bmm", total=True, linear=IN_EACH, autocast=LOWER, out_form="out")
_rows("""
    im2col col2im fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_ihfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2
    fft_fftn fft_ifftn fft_rfftn fft_irfftn fft_fftshift fft_ifftshift _fft_c2c _fft_r2c _fft_c2r complex _to_copy
""", total=True, saves=NOTHING)
# With made-up offsets of sequences a GPU's kernel would read beyond its rows.
_rows("_efficient_attention_forward", total=True, untried=True,
      differentiable=(True, False, False, False, False, False))
_rows("_flash_attention_forward", total=True, untried=True, differentiable=(True, False, False, False, False))
_rows("""
    _cudnn_attention_forward _efficient_attention_backward _flash_attention_backward _cudnn_attention_backward
""", untried=True)
_rows("_scaled_dot_product_flash_attention_for_cpu", total=True, differentiable=(True, False))
_rows("""
    native_layer_norm _native_batch_norm_legit_no_training
""", total=True, differentiable=(True, False, False))
_rows("""
    _native_batch_norm_legit _native_batch_norm_legit_functional native_batch_norm
""", total=True, differentiable=(True, False, False, False, False))
_rows("_batch_norm_with_update_functional", total=True, differentiable=(True, False, False, False, False, False))
_rows("_thnn_fused_lstm_cell", total=True, differentiable=(True, True, False), autocast=LOWER)
_rows("""
    baddbmm addmv _scaled_dot_product_flash_attention addr addbmm linalg_vecdot chain_matmul linalg_multi_dot
    lstm_cell gru_cell
""", total=True, autocast=LOWER)
_rows("cat stack", total=True, autocast=WIDEST)
_rows("vdot tensordot cross bilinear grid_sampler atan2", total=True, autocast=OFTEN_WIDEST)
_rows("""
    linear conv_transpose1d conv_transpose2d conv_transpose3d scaled_dot_product_attention matmul einsum
""", total=True, autocast=LOWER, fresh=True)
_rows("conv2d conv3d", total=True, autocast=LOWER, fresh=True, images=1, bias=2)
_rows("conv1d", total=True, autocast=LOWER, fresh=True, bias=2)
_rows("convolution", total=True, autocast=LOWER, images=1, bias=2)
_rows("addmm", total=True, autocast=LOWER, aligned=True, out_form="out")
_rows("square", total=True, cast_as="pow")
_rows("""
    argsort avg_pool1d adaptive_max_pool1d upsample_nearest1d upsample_nearest2d upsample_bilinear2d
    cumulative_trapezoid
""", total=True, cast_in_parts=False)
_rows("max_pool1d max_pool2d adaptive_avg_pool1d", total=True, cast_in_parts=False, fresh=True)
_rows("full arange", total=True, factory=True)
_rows("layer_norm group_norm batch_norm instance_norm max_pool3d", total=True, fresh=True)
_rows("convolution_backward", total=True, images=2)
_rows("fft_hfft2 fft_hfftn fft_ihfft2 fft_ihfftn", saves=NOTHING)
_rows("as_strided as_strided_copy as_strided_scatter", saves=NOTHING, untried=True)
_rows("linalg_lu lu_unpack", differentiable=(False, True, True))
_rows("rand_like randn_like randint_like histc multinomial", differentiable=(False,))
_rows("_linalg_det", differentiable=(True, False, False))
_rows("_linalg_solve_ex", differentiable=(True, False, False, False))
_rows("_batch_norm_with_update", differentiable=(True, False, False, False, False, False))
_rows("_linalg_slogdet linalg_lstsq", differentiable=(True, True, False, False))
_rows("linspace logspace", differentiable=(False,), factory=True)
_rows("""
    _addmm_activation _native_multi_head_attention _thnn_fused_gru_cell conv_tbc cudnn_convolution
    cudnn_convolution_transpose mkldnn_rnn_layer prelu rnn_relu_cell rnn_tanh_cell
""", autocast=LOWER)
_rows("index_copy", autocast=WIDEST)
_rows("index_put addcdiv addcmul", autocast=OFTEN_WIDEST)
_rows("scatter_add", autocast=OFTEN_WIDEST, backward_equal=(("index", 2), ("src", 3)))
_rows("scatter scatter_reduce", backward_equal=(("index", 2), ("src", 3)))
_rows("_convolution", autocast=LOWER, fresh=True)
_rows("arccos", cast_as="acos")
_rows("arcsin", cast_as="asin")
_rows("arctan2", cast_as="atan2")
_rows("concat concatenate hstack row_stack vstack", cast_as="cat")
_rows("special_erfinv", cast_as="erfinv")
_rows("special_expm1", cast_as="expm1")
_rows("special_log1p", cast_as="log1p")
_rows("special_log_softmax", cast_as="log_softmax")
_rows("special_logsumexp", cast_as="logsumexp")
_rows("rmatmul", cast_as="matmul")
_rows("nll_loss_nd", cast_as="nll_loss")
_rows("pairwise_distance", cast_as="norm")
_rows("rpow", cast_as="pow")
_rows("rdiv", cast_as="reciprocal")
_rows("special_softmax", cast_as="softmax")
_rows("cross_entropy_loss", cast_as="log_softmax", fresh=True)
_rows("alpha_dropout celu count_nonzero feature_dropout nansum relu6 selu", cast_in_parts=False)
_rows("diff histogramdd linalg_norm pad", cast_in_parts=True)
_rows("embedding", cast_in_parts=False, fresh=True)
_rows("""
    empty empty_strided eye hann_window ones rand randint randn randperm scalar_tensor tensor zeros
""", factory=True)
_rows("normal", factory=True, made_on_cpu=True)
_rows("_transformer_encoder_layer_fwd", result_like="src")
_rows("combinations corrcoef cov ctc_loss geqrf histogram", typed_by_run=True)
_rows("""
    __getitem__ cpu cuda item pin_memory record_stream requires_grad_ resize_ resize_as_ set_ to
""", untried=True)
_rows("""
    item tolist nonzero argwhere masked_select unique unique_consecutive _unique2 unique_dim bincount equal is_nonzero
    allclose one_hot linalg_lstsq __getitem__ repeat_interleave where to_sparse narrow tensor_split
""", deferrable=True)
_rows("bincount one_hot linalg_lstsq repeat_interleave narrow tensor_split", raises_late=True)
_rows("""
    add sub mul floor_divide remainder div true_divide neg abs minimum maximum bitwise_and bitwise_or bitwise_xor
    bitwise_not logical_and logical_or logical_xor logical_not eq ne lt le gt ge
""", lines_up=True)
_rows("""
    where exp exp2 expm1 log log2 log1p sqrt rsqrt sin cos tan tanh sigmoid erf relu silu square reciprocal sign ceil
    floor trunc round pow clamp clamp_min clamp_max fmod isnan isinf isfinite positive
    softplus atan sinh cosh lerp
""", lines_up=True)
_rows("new_ones new_zeros", takes_size=True)
_rows("_padded_dense_to_jagged_forward", untried=True)
_rows("_c10d_functional::wait_tensor", waits=True)
_rows("""
    _c10d_functional::all_reduce _c10d_functional::broadcast _c10d_functional::all_gather_into_tensor
    _c10d_functional::reduce_scatter_tensor _c10d_functional::all_to_all_single
    _c10d_functional::all_reduce_coalesced _c10d_functional::all_gather_into_tensor_coalesced
    _c10d_functional::reduce_scatter_tensor_coalesced
""", apart=True)
_rows("_foreach_norm", each="linalg_vector_norm")
_rows("_foreach_powsum _foreach_max", each=None)
_rows("_foreach_addcmul _foreach_addcdiv", by_keyword=((3, "value"),))
