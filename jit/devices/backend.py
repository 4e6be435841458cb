"""What may differ between kinds of devices, as attributes of one object for each kind."""

from __future__ import annotations

import contextlib
from typing import Callable

import torch

from jit.devices.architecture import Architecture


class Problem(Exception):
    """What a check of ``python -m jit doctor`` has found, and how to put it right."""

    def __init__(self, what: str, cure: str, fatal: bool = True) -> None:
        super().__init__(what)
        self.what, self.cure, self.fatal = what, cure, fatal


class Backend:
    """A kind of device. The values in this class are those of a kind of which nothing else is known, whose tensors
    only PyTorch's operators compute."""

    # -- the device ---------------------------------------------------------------------------------------------

    type = ""  # its name in torch.device.type
    known = False  # whether plans run on it
    host = False  # Python and the runtime read its memory directly; a tensor without dimensions there is a number
    indexed = False  # there may be several, and a device without an index is the one that is current
    memory = True  # its tensors have memory, which kernels can fill
    module = None  # the module of PyTorch's functions for it, such as ``torch.cuda``
    activity: str | None = None  # what PyTorch's profiler calls work that runs there by itself: a ProfilerActivity

    def current(self) -> torch.device:
        """The device that is meant where no index is given."""
        return torch.device(self.type)

    def generators(self) -> tuple | None:
        """The random generator of each device of this kind; None while none is in use."""
        return None

    def recording(self) -> bool:
        """Whether what is launched now is recorded rather than run."""
        return False

    def place(self) -> contextlib.AbstractContextManager:
        """A block in which another thread works on the device, and in the stream, in which this one does."""
        return contextlib.nullcontext()

    def settle(self) -> None:
        """Wait for all that was launched."""

    def has_room(self) -> bool:
        """Whether there is as much memory again as the program has taken at most so far."""
        return True

    def architecture(self, device: torch.device | None = None) -> Architecture:
        """The numbers of a device (None: of the current one), or of one to compile for where there is none here."""
        raise NotImplementedError(self.type)

    def facts(self, device: torch.device) -> str:
        """What compiled code that is kept on disk relies on, of this device: it is used where this is the same."""
        return repr(self.architecture(device))

    def checks(self) -> tuple:
        """For ``python -m jit doctor``: pairs of a name and a function, which gives a line to print or raises Problem.
        """
        return ()

    # -- kernels ------------------------------------------------------------------------------------------------

    # The module that makes code from loop kernels (see ``jit.codegen.target``), by name: it is imported when there
    # are kernels to make, since an import of ``jit`` should not take as long as one of an emitter.
    emitter: str | None = None
    dtypes = frozenset([torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.uint8,
                        torch.int8, torch.int16, torch.int32, torch.int64])  # that kernels load, compute and store
    traps = True  # a kernel stops by itself at an index out of range; else it sets a flag, which the plan looks at
    memory_alignment = 256  # bytes, of parts of an arena
    # Bytes of which kernels take the addresses of inputs for multiples, which is guarded; 0: they rely on nothing.
    pointer_alignment = 0

    @property
    def stored(self) -> frozenset:
        """The dtypes that kernels load, convert and store, and compute nothing else of."""
        return frozenset()

    def seconds(self, run: Callable, device: torch.device) -> float | None:
        """How long one of many calls of ``run`` keeps a device busy; None where that cannot be found out now."""
        return None

    launches_user_kernels = False  # Triton kernels of the program's own are launched by the plan itself
    launches_early: float = 0  # kernels of so few programs are launched while others run, and wait for these themselves

    # Small kernels that need nothing of each other are one launch, and so are products with one vector.
    launches_side_by_side = False

    # -- fusion -------------------------------------------------------------------------------------------------

    cheap_to_broadcast = 0  # cost of a value that is computed for every element it is broadcast to
    cheap_without_reads = 0  # cost of a value that each reader may compute for itself from nothing as large as it is
    cheap_beside_reads = 0  # the same of one that each reader may compute from tensors that it reads anyway
    largest_update = 0  # elements of the tensors that one kernel updates together with others
    tiles_transposes = False  # kernels without a reduction transpose by tiles, those with one do not
    one_pass_moments = False  # a split sum of squares about the mean reads its tensor once
    tables_of_runs = False  # what is the same along a few elements in a row is written out for each of them
    wide_partials = False  # the parts of a split sum of float32 are kept, and rows that ask for it summed, in float64
    refines_views = False  # what follows a reduction over split dimensions is computed over these
    repeats_behind_rows = False  # what depends on results of rows is computed by each reader, up to a cost
    cuts_what_waits = False  # sums of exponentials and positions of extrema over few rows are taken over chunks first
    sums_by_rows = False  # a sum over everything that reads results of rows is taken over each of them first
    adds_columns_beside_rows = False  # a kernel that reduces rows can add up columns in the same pass
    cuts_several = False  # a split reduction of columns may be cut along several leading dimensions, as one range
    atomics = False  # kernels add to places that data decide
    groups_rows = False  # long rows that are added so are sorted by place first
    adds_bags = False  # kernels add up the rows of a bag of embeddings faster than the library's do
    searches = False  # kernels look for places in sorted tensors
    longest_sorted = 0  # elements of the rows that kernels sort by keys of 64 bits; twice as many by 32
    # Kind of window (``graph.windows``) -> up to how many places kernels read for an element, unrolled; all others are
    # the library's. Sums go by the kind of their axes, the rest by what is done with the places.
    window_limits: dict[str, int] = {}
    places_at_once = 16  # of a window over several dimensions; of more, an axis at a time is read
    least_share = 0  # elements of the shares of an adaptive mean from which they are reduced as rows; 0: never
    joins_launches = False  # several runs of a kernel that need nothing of each other are one launch
    full_vector = 0  # columns times chunks from which loops over few columns fill a vector; 0: no such loops

    def splits(self, rows: int, row: int, inner: bool) -> bool:
        """Whether a reduction of ``rows`` rows of ``row`` elements has too few rows for the device. ``inner``: rows lie
        along the memory."""
        return False

    def chunks(self, rows: int, total: int, inner: bool, plain: bool = False) -> int:
        """Into about how many pieces each row, of ``total`` elements, of a split reduction is cut. ``plain``: nothing
        else is done with the elements than that one number is made of them."""
        raise NotImplementedError(self.type)

    splits_scans = False  # scans of few rows are taken over pieces of them

    def scan_pieces(self, outer: int, length: int, inner: int) -> int:
        """The length of the pieces in which rows of ``length`` elements are scanned, of which ``inner`` lie side by
        side, ``outer`` times; 0 for whole rows."""
        return 0

    def walkers(self) -> int:
        """About how many programs share the rows of a kernel that adds up columns beside."""
        raise NotImplementedError(self.type)

    # -- forms in which the library is called -------------------------------------------------------------------

    libraries: tuple = ()  # whose switches in ``torch.backends`` its operators obey
    # Which products with a vector are sums in kernels: "made", those of a matrix that kernels make, "all", None.
    sums_products: str | None = None
    norms_in_products = False  # sums over the vector are taken along, for each row, with no kernel in front
    most_vectors = most_half_vectors = 1  # in such a product, and of half types
    sure_templates = False  # templates may be used without timing
    products_flat = False  # ``linear`` as a matrix product on views, which is cheaper to call
    aligned_rows = 0  # bytes of which rows of matrices of halves should be multiples for the library's fast kernels
    worth_aligning = 1 << 18  # elements of a matrix from which that pays
    convolves = False  # kernels of ours may convolve channels-last images of halves: with weights in that format too
    # Gradients of convolutions of patches, and of each channel by itself, are products and convolutions of ours.
    convolves_backwards = False
    pixels_as_products = False  # channels-last convolutions of one pixel in halves are matrix products
    adds_bias_apart = False  # the bias of a convolution is added by a kernel of ours
    # The library adds float32 gradients of convolutions in chains, where its format has them: the sums that are not as
    # exact as eager's are taken in another format, or by kernels of ours.
    adds_in_chains = False
    sums_columns_with_producer = False  # the kernel that makes a matrix can sum its columns in the same pass
    native_dropout = False  # PyTorch's dropout is one operator, which gives its mask
    draws_bool_masks = False  # ``bernoulli`` draws for bool as for floating point numbers
    plain_flash_attention = False  # fused attention is one operator, which takes all that has no dropout
    asks_for_attention = False  # which of several fused kernels attention takes is asked of PyTorch
    fuses_attention = False  # there are kernels for attention whose scores are any function of a product
    fuses_gradients_of_attention = True  # and for its gradients
    attended = frozenset([torch.float16, torch.bfloat16])  # the dtypes that they take
    fewest_scores, fewest_queries = 1 << 14, 1  # below, the library's products are as good, and their launches too
    rounds_weights = True  # weights of halves are halves there, as in eager
    attends_any_length = False  # of sizes that are symbols too, but for the widths

    def attends_scores(self, dtype: torch.dtype) -> bool:
        """Whether that is worth it where the scores are of a dtype before their function."""
        return True

    fuses_few_queries = False  # also the library's attention of a few queries with a mask
    # They also take the place of products and a softmax that the program writes, with biases read along the keys.
    fuses_spelled_attention = False
    fuses_biased_attention = False  # and of the library's attention with a mask of numbers
    transposed_attention = True  # fused attention of float32 gives (N, L, H, E) in memory
    dense_masks = False  # fused attention wants masks whose last dimension is dense
    onednn = False  # recurrent layers have oneDNN's operators
    ctc_loss_in_parts = False  # ``_ctc_loss`` gives what the gradient of ``ctc_loss`` reads
    # Elements of a draw from which kernels of ours make the numbers; None: they never do.
    fewest_drawn: int | None = None
    autocast_key: str | None = None  # the dispatch key of autocast
    autocast_widens: bool = False  # runs more operators in the widest type of their operands
    autocast_leaves: frozenset[str] = frozenset()  # those that it intercepts, but not to cast their operands alone

    # -- how eager computes there, and what types it gives ------------------------------------------------------

    # Of numbers beside tensors.
    reads_numbers = False  # elementwise kernels take a second operand without dimensions as a number, unrounded
    adds_numbers_exactly = True  # sums take numbers among halves as they are, not rounded to the dtype
    divides_by_reciprocals = False  # tensors are multiplied by the reciprocal of a number that divides them
    rounds_limits = True  # thresholds are rounded to the dtype of halves
    rounds_logit_limits = False  # those of ``logit`` are
    refuses_large_numbers = True  # ``where`` refuses numbers that halves cannot hold
    checks_divisors = False  # integers are not divided by zero: it raises
    # Of values.
    vectorized = False  # gradients of activations come from kernels for vectors, which compare differently with NaN
    gives_nan_gradients = True  # outside of limits there is no gradient, but there is one for NaN
    clamp_passes_nan_limits = False  # ``clamp`` with one limit, which is NaN, gives what it is given
    shares_extrema_by_choice = False  # the gradient of a maximum chooses among values, where others multiply by 0 or 1
    scales_products = False  # ``addcmul`` multiplies the product by its factor, and not one of the operands
    elu_bends_above_zero = True  # ``elu`` takes zero for negative
    roots_of_halves_are_powers = False  # the root of float16's -inf is +inf
    softmax_rounds = False  # softmax along another dimension than the last rounds what is in between to halves
    wide_variance = False  # variances are computed in float64
    wide_moments = False  # norms take sums in float64 where asked to, and means that do not overflow
    ordered_norms = False  # gradients of norms of float64 go in the order of PyTorch's CPU kernels
    rms_by_mean = False  # rms_norm goes by the mean of rows that are no multiple of four elements
    draws_in_blocks = False  # ``normal_`` draws for 16 numbers at once, where there are no gaps between them
    # Of layouts.
    converts_operands = False  # operands of another dtype than the result's are converted first, which makes them dense
    keeps_channels_last = False  # norms, rolls and shuffles follow a channels-last operand
    row_major_results = False  # ``log_sigmoid``, and batch norms of what is not channels-last, give row-major tensors
    # Of types, and of calls of the library's operators.
    types_half_statistics = False  # batch norms of halves give statistics of the dtype of the parameters
    reserves_nothing = False  # batch norms keep no bytes for their backward
    refuses_empty = False  # gradients of tensors without elements check indices, where others read beyond them
    saves_otherwise = False  # operators keep other tensors for the backward than their meta kernels
