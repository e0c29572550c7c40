"""Products that torch's operators compute: their shapes, or the count of their operations.

An operator that multiplies matrices has a formula here, by its name without `_` and overload. One
that has none is charged by its bytes; `is_known` tells such an operator from one that only moves
them.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.hardware.spec import Product
    from simrank.torch.cuda.operations import DeviceOperation, Operand

Sizes = tuple[int, ...]


class Multiplied(NamedTuple):
    """One kernel of an operator that multiplies.

    Attributes:
        flops: Its operations.
        product: Its shape, if a library of matrix products computes it.
        factor: The operand whose type decides the rate, by its place.
        share: The part of the peak that it reaches where it is no such product.
        times: How many times as long it takes as that product of a library.
    """

    flops: float
    product: Product | None = None
    factor: int = 0
    share: float = 1.0
    times: float = 1.0

    @property
    def is_vector(self) -> bool:
        """Whether memory limits it on any device."""
        return self.product is None and self.share == 1.0


def base_name(name: str) -> str:
    """Return an operator's name without overload, and without the `_` of one in place."""
    base = name.partition(".")[0]
    return base[:-1] if base.endswith("_") and not base.endswith("__") else base


def multiplied(operation: DeviceOperation) -> list[Multiplied]:
    """Return the kernels of an operator that multiply; none if no formula has its name."""
    base = base_name(operation.name)
    tensors = (*operation.inputs, *operation.outputs)
    formula = _FORMULAS.get(base)
    if formula is None:
        return _registered(operation)
    found = formula([each.sizes for each in operation.inputs], [o.sizes for o in operation.outputs])
    return [_of_complex(each, tensors) for each in found if each.flops]


_COMPLEX = {8, 9, 10}  # c10::ScalarType


def _of_complex(found: Multiplied, tensors: Sequence[Operand]) -> Multiplied:
    """Return the real operations of a product of complex numbers: four products, two sums."""
    if tensors[min(found.factor, len(tensors) - 1)].dtype not in _COMPLEX:
        return found
    product = found.product
    if product is not None:
        batch, m, n, k = product
        product = batch, m, 2 * n, 2 * k
    return found._replace(flops=4 * found.flops, product=product)


def _of(batch: int, m: int, n: int, k: int, factor: int = 0) -> list[Multiplied]:
    return [Multiplied(2.0 * batch * m * n * k, (batch, m, n, k), factor)]


# ---- matrix products ----


def _matrices(
    first: int, times: float = 1.0
) -> Callable[[list[Sizes], list[Sizes]], list[Multiplied]]:
    """Return the formula of the product of two operands, the first of them at a place."""

    def formula(inputs: list[Sizes], _: list[Sizes]) -> list[Multiplied]:
        a, b = inputs[first : first + 2]
        if len(a) < 2 or len(b) < 2:
            return []  # Sparse ones: their indices and values are operands.
        return [_of(prod(a[:-2]), a[-2], b[-1], a[-1], first)[0]._replace(times=times)]

    return formula


def _vector(first: int) -> Callable[[list[Sizes], list[Sizes]], list[Multiplied]]:
    """Return the formula of products with a vector, which the memory limits."""

    def formula(inputs: list[Sizes], _: list[Sizes]) -> list[Multiplied]:
        return [Multiplied(2.0 * prod(inputs[first]), factor=first)]

    return formula


# cuBLAS's products of int8 beside the peak, which no table of products tells: ten rows of GEMMul8
# on A100 and B200 (benches/products_published.csv).
_INTEGER_TIMES = 1.9
# Kernels for groups beside cuBLAS's for a batch of the same shapes. Assumed for all devices: the
# median of six sources of benches/products_published.csv, whose own medians are 1.1 to 1.5.
_GROUPED_TIMES = 1.2
_OF_GROUPS = "_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"


def _grouped(inputs: list[Sizes], outputs: list[Sizes]) -> list[Multiplied]:
    """Return the products of groups of rows, columns or inner dimensions; even ones (assumed).

    The values of the offsets are not known here; what they leave out is computed as well.
    """
    a, b = inputs[:2]
    if len(a) == len(b) == 3:
        return [_of(a[0], a[1], b[2], a[2])[0]._replace(times=_GROUPED_TIMES)]
    num = max(b[0] if len(b) == 3 else a[0] if len(a) == 3 else outputs[0][0], 1)
    if len(b) == 3:
        m, n, k = -(-a[0] // num), b[2], a[1]
        total = 2.0 * a[0] * n * k
    elif len(a) == 3:
        m, n, k = a[1], -(-b[1] // num), a[2]
        total = 2.0 * m * b[1] * k
    else:
        m, n, k = a[0], b[1], -(-a[1] // num)
        total = 2.0 * m * n * a[1]
    return [Multiplied(total, (num, m, n, k), times=_GROUPED_TIMES)]


def is_grouped(name: str) -> bool:
    """Return whether an operator multiplies groups, such as the rows of each expert."""
    return base_name(name) in _OF_GROUPS


def _of_packed_weight(inputs: list[Sizes], outputs: list[Sizes]) -> list[Multiplied]:
    """Return the product of activations with a weight of integers, which is packed."""
    k, made = inputs[0][-1], outputs[0] if outputs else inputs[0]
    return _of(1, prod(made[:-1]), made[-1], k)


def _batched_sum(inputs: list[Sizes], _: list[Sizes]) -> list[Multiplied]:
    """Return the products of `addbmm`, which are one over batch and inner dimension."""
    a, b = inputs[1:3]
    return _of(1, a[1], b[2], a[0] * a[2], 1)


def _chain_of_linear(inputs: list[Sizes], _: list[Sizes]) -> list[Multiplied]:
    """Return the products of an operator that holds whole layers: each weight with all tokens."""
    source = inputs[0]
    tokens = prod(source[:-1])
    length, width = source[-2], source[-1]
    weights = [each for each in inputs[1:] if len(each) == 2 and width in each]
    batch = tokens // max(length, 1)
    found = [_of(1, tokens, *weight)[0] for weight in weights]
    return [*found, *(2 * _of(batch, length, length, width))]


def _recurrent(inputs: list[Sizes], _: list[Sizes]) -> list[Multiplied]:
    """Return the products of a recurrent network: each weight with all steps and samples."""
    tokens = prod(inputs[0][:-1])
    return [_of(1, tokens, *each)[0] for each in inputs[1:] if len(each) == 2]


def _trilinear(inputs: list[Sizes], _: list[Sizes]) -> list[Multiplied]:
    first, weight = inputs[0], inputs[1]
    return [Multiplied(2.0 * prod(first[:1]) * prod(weight), share=_SHARE_OF_VECTORS)]


def _distances(inputs: list[Sizes], _: list[Sizes]) -> list[Multiplied]:
    """Return the differences and sums of `cdist` without products."""
    x, y = inputs[:2]
    pairs = prod(x[:-2]) * x[-2] * y[-2] * x[-1]
    return [Multiplied(3.0 * pairs, share=_SHARE_OF_VECTORS)]


def _distances_within(place: int) -> Callable[[list[Sizes], list[Sizes]], list[Multiplied]]:
    """Return the formula of the differences and sums of `pdist`; the points are at a place."""

    def formula(inputs: list[Sizes], _: list[Sizes]) -> list[Multiplied]:
        rows, width = inputs[place]
        return [Multiplied(1.5 * rows * (rows - 1) * width, share=_SHARE_OF_VECTORS)]

    return formula


# ---- dense factorizations ----
# Counts are of LAPACK Working Note 41 (Anderson, Dongarra, Ostrouchov), in their largest terms;
# those of iterative ones (eigenvalues, singular values) are of Golub and Van Loan, "Matrix
# Computations", 4th edition, chapters 7 and 8. Shares of the peak are assumed: a factorization
# reaches half of it for large matrices, one that reduces to two diagonals reads all at each step.

_SHARE_OF_VECTORS = 0.5
_SHARE_OF_FACTORS = 0.5
_SHARE_OF_TWO_SIDED = 0.05


def _factors(count: Callable[[int, int], float], share: float) -> Callable[..., list[Multiplied]]:
    """Return the formula of a factorization of matrices of m rows and n columns."""

    def formula(inputs: list[Sizes], outputs: list[Sizes]) -> list[Multiplied]:
        sizes = inputs[0] if len(inputs[0]) >= 2 else outputs[0]
        if len(sizes) < 2:
            return []
        return [Multiplied(prod(sizes[:-2]) * count(*sizes[-2:]), share=share)]

    return formula


def _lu(m: int, n: int) -> float:
    k = min(m, n)
    return 2.0 * (m * n * k - (m + n) * k * k / 2 + k**3 / 3)


def _qr(m: int, n: int) -> float:
    k = min(m, n)
    return 2.0 * (2 * m * n * k - (m + n) * k * k + 2 * k**3 / 3)


def _with_q(m: int, n: int) -> float:
    return 2.0 * _qr(m, n)


def _cubes(times: float) -> Callable[[int, int], float]:
    return lambda m, n: times * m * n * min(m, n)


def _eigen(with_vectors: float, without: float) -> Callable[..., list[Multiplied]]:
    """Return the formula of eigenvalues; vectors are the second output, or empty."""

    def formula(inputs: list[Sizes], outputs: list[Sizes]) -> list[Multiplied]:
        has_vectors = len(outputs) > 1 and prod(outputs[1]) > 0
        times = with_vectors if has_vectors else without
        return _factors(_cubes(times), _SHARE_OF_TWO_SIDED)(inputs, outputs)

    return formula


def _singular(inputs: list[Sizes], outputs: list[Sizes]) -> list[Multiplied]:
    """Return the formula of singular values; the first output is empty without vectors."""
    has_vectors = bool(outputs) and prod(outputs[0]) > 0
    *batch, m, n = inputs[0]
    k, most = min(m, n), max(m, n)
    count = 14 * most * k * k + 8 * k**3 if has_vectors else 4 * most * k * k - 4 * k**3 / 3
    return [Multiplied(float(prod(batch) * count), share=_SHARE_OF_TWO_SIDED)]


def _solved(factor: float, place: int, right: int) -> Callable[..., list[Multiplied]]:
    """Return the formula of a solution: a factorization, and two triangles per right-hand side.

    Args:
        factor: Operations of the factorization, of n cubed.
        place: Of the matrices among the inputs.
        right: Of the right-hand sides.
    """

    def formula(inputs: list[Sizes], _: list[Sizes]) -> list[Multiplied]:
        *batch, _rows, n = inputs[place]
        columns = inputs[right][-1] if len(inputs[right]) >= len(inputs[place]) else 1
        count = prod(batch) * (factor * n**3 + 2 * n * n * columns)
        return [Multiplied(float(count), factor=place, share=_SHARE_OF_FACTORS)]

    return formula


def _triangle(inputs: list[Sizes], _: list[Sizes]) -> list[Multiplied]:
    *batch, _rows, n = inputs[0]
    count = prod(batch) * n * n * inputs[1][-1]
    return [Multiplied(float(count), share=_SHARE_OF_FACTORS)]


def _least_squares(inputs: list[Sizes], _: list[Sizes]) -> list[Multiplied]:
    *batch, m, n = inputs[0]
    columns = inputs[1][-1] if len(inputs[1]) >= len(inputs[0]) else 1
    count = prod(batch) * (_qr(m, n) + 4 * m * n * columns)
    return [Multiplied(count, share=_SHARE_OF_FACTORS)]


def _orthogonal(inputs: list[Sizes], _: list[Sizes]) -> list[Multiplied]:
    """Return the product with the orthogonal matrix of a factorization."""
    *batch, _rows, k = inputs[0]
    count = 4.0 * prod(batch) * prod(inputs[2][-2:]) * k
    return [Multiplied(count, share=_SHARE_OF_FACTORS)]


def _exponential(inputs: list[Sizes], _: list[Sizes]) -> list[Multiplied]:
    """Return the products of a matrix's exponential: a polynomial of degree 18, and squarings.

    Five products, and five squarings of a matrix whose norm is 100 (assumed).
    """
    *batch, n, _columns = inputs[0]
    return 10 * _of(prod(batch), n, n, n)


_FORMULAS: dict[str, Callable[[list[Sizes], list[Sizes]], list[Multiplied]]] = {
    **dict.fromkeys(("mm", "bmm", "_scaled_mm", "_scaled_mm_v2"), _matrices(0)),
    "_int_mm": _matrices(0, _INTEGER_TIMES),
    **dict.fromkeys(("addmm", "baddbmm", "_addmm_activation"), _matrices(1)),
    "addbmm": _batched_sum,
    **dict.fromkeys(("mv", "dot", "vdot"), _vector(0)),
    "addmv": _vector(1),
    **dict.fromkeys(_OF_GROUPS, _grouped),
    **dict.fromkeys(
        ("_weight_int8pack_mm", "_weight_int4pack_mm", "_weight_int4pack_mm_with_scales_and_zeros",
         "_weight_int4pack_mm_for_cpu", "_mixed_dtypes_linear", "_dyn_quant_matmul_4bit",
         "mkldnn_linear", "_cslt_sparse_mm", "_sparse_semi_structured_linear"), _of_packed_weight,
    ),
    "_transformer_encoder_layer_fwd": _chain_of_linear,
    "_native_multi_head_attention": _chain_of_linear,
    **dict.fromkeys(("_cudnn_rnn", "mkldnn_rnn_layer", "miopen_rnn"), _recurrent),
    "_trilinear": _trilinear,
    **dict.fromkeys(("_cdist_forward", "_cdist_backward"), _distances),
    "_pdist_forward": _distances_within(0),
    "_pdist_backward": _distances_within(1),
    **dict.fromkeys(("linalg_cholesky_ex", "cholesky"), _factors(_cubes(1 / 3), _SHARE_OF_FACTORS)),
    **dict.fromkeys(("linalg_ldl_factor_ex",), _factors(_cubes(1 / 3), _SHARE_OF_FACTORS)),
    **dict.fromkeys(
        ("linalg_lu_factor_ex", "linalg_lu", "_linalg_det", "_linalg_slogdet", "_lu_with_info"),
        _factors(_lu, _SHARE_OF_FACTORS),
    ),
    **dict.fromkeys(("linalg_inv_ex", "linalg_inv"), _factors(_cubes(2), _SHARE_OF_FACTORS)),
    "cholesky_inverse": _factors(_cubes(2 / 3), _SHARE_OF_FACTORS),
    "linalg_qr": _factors(_with_q, _SHARE_OF_FACTORS),
    **dict.fromkeys(("geqrf", "linalg_householder_product"), _factors(_qr, _SHARE_OF_FACTORS)),
    "ormqr": _orthogonal,
    "_linalg_eigh": _eigen(9, 4 / 3),
    **dict.fromkeys(("linalg_eig", "_linalg_eigvals", "linalg_eigvals"), _eigen(25, 10)),
    "_linalg_svd": _singular,
    "_linalg_solve_ex": _solved(2 / 3, 0, 1),
    "linalg_lu_solve": _solved(0, 0, 2),
    "linalg_ldl_solve": _solved(0, 0, 2),
    "_cholesky_solve_helper": _solved(0, 1, 0),
    **dict.fromkeys(("linalg_solve_triangular", "triangular_solve"), _triangle),
    "linalg_lstsq": _least_squares,
    "linalg_matrix_exp": _exponential,
}  # fmt: skip


# ---- formulas of other libraries, and what is known ----


def _registered(operation: DeviceOperation) -> list[Multiplied]:
    """Return the count of a formula that a program has registered with torch's `flop_counter`."""
    namespace, _, rest = operation.name.partition("::")
    if not rest:
        return []
    formula = _formula_of(namespace, rest.partition(".")[0])
    if formula is None:
        return []
    inputs = [torch.Size(each.sizes) for each in operation.inputs]
    outputs = [torch.Size(each.sizes) for each in operation.outputs]
    try:
        flops = formula(*inputs, out_val=outputs[0] if len(outputs) == 1 else outputs)
    except (TypeError, ValueError, AttributeError, AssertionError, IndexError):
        # It wants more than tensors' shapes: numbers, flags.
        return []
    return [Multiplied(float(flops))]


@lru_cache(maxsize=256)
def _formula_of(namespace: str, name: str) -> Callable[..., float] | None:
    from torch.utils.flop_counter import flop_registry  # noqa: PLC0415 - loads a table

    packet = getattr(getattr(torch.ops, namespace, None), name, None)
    found: Callable[..., float] | None = flop_registry.get(packet)
    return found
