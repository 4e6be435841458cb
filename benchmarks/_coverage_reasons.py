"""Why an operator of PyTorch stays a library call: one row for each reason, with the operators as a regular expression.

``benchmarks/coverage.py`` finds the calls and writes them with their reasons into docs/performance.md. What no row
names is "not yet".
"""

from __future__ import annotations

import re

NOT_YET = "not yet"
REASONS = {
    "the result's size, or Python's next step, depends on the data: called when the graph has run": r"item|argwhere"
    r"|nonzero|masked_select|equal|allclose|is_nonzero|unique\w*|bincount|linalg_lstsq|repeat_interleave|tensor_split"
    r"|to_sparse|one_hot",
    "products: cuBLAS and oneDNN": r"(add)?(m[mv]|bmm)|baddbmm|addbmm|dot|vdot|inner|linear|matmul|einsum|bilinear"
    r"|tensordot|linalg_(vecdot|multi_dot|matrix_power|vander)|chain_matmul|_scaled_mm.*|_int_mm|_trilinear"
    r"|corrcoef|_?grouped_mm",
    "convolutions and recurrent layers: cuDNN and oneDNN": r".*conv(olution|\d|_transpose).*|.*(lstm|gru|rnn).*",
    "attention: fused kernels of the library": r"_?scaled_dot_product.*|_native_multi_head_attention",
    "factorisations: LAPACK and cuSOLVER": r"linalg_(?!vecdot|multi_dot|matrix_power|vander|cross|vector_norm"
    r"|matrix_norm$).*|cholesky.*|geqrf|qr|svd|lu_.*|_lu_.*|ormqr|pinverse|logdet|matrix_exp|nuclear_norm"
    r"|triangular_solve|lstsq|linalg_matrix_norm|_linalg_.*",
    "Fourier transforms: MKL and cuFFT": r"_?fft_.*|stft|istft",
    "random numbers that are few, or of a distribution without kernels": r"bernoulli|cauchy|exponential|geometric"
    r"|log_normal|multinomial|normal(_functional)?|rand.*|rrelu|uniform|poisson|_?fractional_max_pool\w+",
    "complex numbers: views that show them as pairs of real ones, and functions without a form": r"view_as_complex"
    r"|view_as_real|imag|real|_conj|_neg_view|complex|polar|_to_copy|angle|silu",
    "a view of memory that only PyTorch makes": r"as_strided|_reshape_alias|view",
    "sequential along the data, with a kernel of the library's": r"_?ctc_loss.*|segment_reduce|masked_scatter",
    "sorts of long rows, on CPUs of all": r"sort|argsort|msort|topk|kthvalue|median|nanmedian|mode|quantile|nanquantile"
    r"|unique.*",
    "writes at places that data decide: on CPUs in the library's order; kernels on GPUs": r"scatter(_add|_reduce)?"
    r"|index_(add|copy|fill|put|reduce)|_index_put_impl|_unsafe_masked_index.*|put|take|embedding_(dense_backward|bag)"
    r"|searchsorted|bucketize|isin|nonzero_static|gather",
    "counts of values": r"histc|histogram|_histogramdd.*|bincount|hash_tensor",
    "divides whole numbers, and raises for zero": r"div|remainder|floor_divide|fmod",
    "functions of mathematical physics": r"special_(?!entr|ndtr$|xlog1py).*|igammac?|polygamma|mvlgamma|digamma|lgamma",
}


def reason(call: str) -> str:
    """Why a plan calls this operator."""
    name = call.removesuffix(" (vjp)")
    return next((why for why, names in REASONS.items() if re.fullmatch(names, name)), NOT_YET)
