"""Methods of tensors by function, as data: `x.f(...)` is `torch.f(x, ...)`.

A function of this package whose first argument is a tensor becomes a method by standing here.
What only reads metadata, waits or reads values is in `tensor` itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.device.dtypes import as_dtype
from simrank.device.tensors import arithmetic, indexing, joining, products, reductions, views
from simrank.device.tensors.elementwise import TENSORS_ONLY
from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.device.tensors.tensor import Tensor


def binary_method(name: str, *, swap: bool = False) -> Callable[..., Tensor]:
    """Return a method from the table of functions of two."""

    def method(self: Tensor, other: object, *, alpha: float = 1) -> Any:  # noqa: ANN401
        if name in ("eq", "ne") and not hasattr(other, "storage") and not _is_number(other):
            return NotImplemented
        if name in TENSORS_ONLY and not hasattr(other, "storage"):
            raise TypeError(
                f"{name}(): argument 'other' must be Tensor, not {type(other).__name__}"
            )
        return arithmetic.binary(name, self, other, swap=swap, alpha=alpha)

    method.__name__ = name
    method.__doc__ = f"Return `{name}` of both, promoted and broadcast as torch does."
    return method


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float | complex) or hasattr(value, "dtype")


def inplace_method(name: str) -> Callable[..., Tensor]:
    """Return a method that computes into its tensor; `alpha` scales the operand, as in torch."""

    def method(self: Tensor, other: object, *, alpha: float = 1) -> Tensor:
        return arithmetic.binary_(name, self, other, alpha)

    method.__name__ = f"{name}_"
    method.__doc__ = f"Compute `{name}` into this tensor."
    return method


def unary_method(name: str) -> Callable[[Tensor], Tensor]:
    """Return a method from the table of functions of one."""

    def method(self: Tensor) -> Tensor:
        return arithmetic.unary(name, self)

    method.__name__ = name
    method.__doc__ = f"Return `{name}` of every element."
    return method


def inplace_unary(name: str) -> Callable[[Tensor], Tensor]:
    """Return a method that computes a function of every element into its tensor."""

    def method(self: Tensor) -> Tensor:
        return arithmetic.unary_(name, self)

    method.__name__ = f"{name}_"
    method.__doc__ = f"Compute `{name}` of every element into this tensor."
    return method


def _gelu(tensor: Tensor, approximate: str = "none") -> Tensor:
    """Return x * Phi(x) of every element; `approximate` is "none" or "tanh"."""
    if approximate not in ("none", "tanh"):
        raise RuntimeError("approximate argument must be either none or tanh.")
    return arithmetic.unary("gelu" if approximate == "none" else "gelu_tanh", tensor)


def _cast(name: str) -> Callable[[Tensor], Tensor]:
    """Return a method that converts to a dtype."""

    def method(self: Tensor) -> Tensor:
        return self.to(dtype=as_dtype(name))

    method.__name__ = name
    method.__doc__ = f"Return it as {name}."
    return method


def refused(name: str) -> Callable[..., Any]:
    """Return a method that says that simrank's tensors have no autograd."""

    def method(self: Tensor, *args: object, **options: object) -> Any:  # noqa: ANN401, ARG001
        raise UnsupportedError(
            f"Tensor.{name} is not supported: tensors of simrank have no autograd"
        )

    method.__name__ = name
    method.__doc__ = "Refuse by name: simrank's tensors have no autograd."
    return method


class TensorMethods:
    """Everything of a tensor that is computed in stream order, or is a view."""

    __slots__ = ()

    # ---- views ----
    view, view_as, reshape = views.view, views.view_as, views.reshape
    flatten, unflatten = views.flatten, views.unflatten
    transpose = swapaxes = swapdims = views.transpose
    t, permute, movedim, diagonal = views.t, views.permute, views.movedim, views.diagonal
    unsqueeze, squeeze = views.unsqueeze, views.squeeze
    expand, expand_as, broadcast_to = views.expand, views.expand_as, views.expand
    narrow, select, unbind = views.narrow, views.select, views.unbind
    split, chunk, tensor_split = views.split, views.chunk, views.tensor_split
    detach = views.detach

    # ---- of two ----
    add = __add__ = __radd__ = binary_method("add")
    sub = subtract = __sub__ = binary_method("sub")
    __rsub__ = binary_method("sub", swap=True)
    mul = multiply = __mul__ = __rmul__ = binary_method("mul")
    div = divide = true_divide = __truediv__ = binary_method("div")
    __rtruediv__ = binary_method("div", swap=True)
    pow = __pow__ = binary_method("pow")
    __rpow__ = binary_method("pow", swap=True)
    floor_divide = __floordiv__ = binary_method("floor_divide")
    __rfloordiv__ = binary_method("floor_divide", swap=True)
    remainder = __mod__ = binary_method("remainder")
    __rmod__ = binary_method("remainder", swap=True)
    maximum, minimum = binary_method("maximum"), binary_method("minimum")
    bitwise_and = __and__ = __rand__ = binary_method("bitwise_and")
    bitwise_or = __or__ = __ror__ = binary_method("bitwise_or")
    bitwise_xor = __xor__ = __rxor__ = binary_method("bitwise_xor")
    logical_and, logical_or = binary_method("logical_and"), binary_method("logical_or")
    logical_xor = binary_method("logical_xor")
    eq = __eq__ = binary_method("eq")  # type: ignore[assignment]  # torch's, per element
    ne = __ne__ = binary_method("ne")  # type: ignore[assignment]
    lt = __lt__ = binary_method("lt")
    le = __le__ = binary_method("le")
    gt = __gt__ = binary_method("gt")
    ge = __ge__ = binary_method("ge")
    isclose = joining.isclose
    add_ = __iadd__ = inplace_method("add")
    sub_ = __isub__ = inplace_method("sub")
    mul_ = __imul__ = inplace_method("mul")
    div_ = __itruediv__ = inplace_method("div")
    pow_ = __ipow__ = inplace_method("pow")
    bitwise_and_ = __iand__ = inplace_method("bitwise_and")
    bitwise_or_ = __ior__ = inplace_method("bitwise_or")

    # ---- of one ----
    neg = negative = __neg__ = unary_method("neg")
    abs = absolute = __abs__ = unary_method("abs")
    bitwise_not = __invert__ = unary_method("bitwise_not")
    exp, exp2, expm1 = unary_method("exp"), unary_method("exp2"), unary_method("expm1")
    log, log2, log10 = unary_method("log"), unary_method("log2"), unary_method("log10")
    log1p, sin, cos = unary_method("log1p"), unary_method("sin"), unary_method("cos")
    sqrt, rsqrt, square = unary_method("sqrt"), unary_method("rsqrt"), unary_method("square")
    reciprocal, sign = unary_method("reciprocal"), unary_method("sign")
    ceil, floor = unary_method("ceil"), unary_method("floor")
    round, trunc = unary_method("round"), unary_method("trunc")
    tanh, sigmoid, erf = unary_method("tanh"), unary_method("sigmoid"), unary_method("erf")
    relu, silu, gelu = unary_method("relu"), unary_method("silu"), _gelu
    isnan, isinf = unary_method("isnan"), unary_method("isinf")
    isfinite, logical_not = unary_method("isfinite"), unary_method("logical_not")
    neg_, abs_, exp_, log_ = (inplace_unary(name) for name in ("neg", "abs", "exp", "log"))
    sqrt_, rsqrt_, relu_ = (inplace_unary(name) for name in ("sqrt", "rsqrt", "relu"))
    tanh_, sigmoid_ = inplace_unary("tanh"), inplace_unary("sigmoid")
    reciprocal_, square_ = inplace_unary("reciprocal"), inplace_unary("square")
    clamp, clamp_, clip = joining.clamp, joining.clamp_, joining.clamp
    lerp, addcmul, addcdiv = joining.lerp, joining.addcmul, joining.addcdiv
    lerp_, addcmul_, addcdiv_ = joining.lerp_, joining.addcmul_, joining.addcdiv_

    # ---- along dims ----
    sum, mean, prod = reductions.sum, reductions.mean, reductions.prod
    var, std, norm = reductions.var, reductions.std, reductions.norm
    any, all = reductions.any_, reductions.all_
    max, min, amax, amin = reductions.max_, reductions.min_, reductions.amax, reductions.amin
    argmax, argmin, argsort = reductions.argmax, reductions.argmin, reductions.argsort
    sort, topk = reductions.sort, reductions.topk
    cumsum, cumprod = reductions.cumsum, reductions.cumprod
    softmax, log_softmax = reductions.softmax, reductions.log_softmax
    logsumexp = reductions.logsumexp

    # ---- products ----
    matmul = __matmul__ = products.matmul
    mm, bmm, mv, dot = products.mm, products.bmm, products.mv, products.dot
    outer, addmm = products.outer, products.addmm

    # ---- by index, and copies ----
    gather, index_select = indexing.gather, indexing.index_select
    where = joining.where_self
    scatter_, scatter_add_ = indexing.scatter_, indexing.scatter_add_
    index_add_ = indexing.index_add_
    masked_fill, masked_fill_ = indexing.masked_fill, indexing.masked_fill_
    repeat, repeat_interleave = joining.repeat, joining.repeat_interleave
    flip, roll, tril, triu = joining.flip, joining.roll, joining.tril, joining.triu

    # ---- other types ----
    double, float = _cast("float64"), _cast("float32")
    half, bfloat16 = _cast("float16"), _cast("bfloat16")
    long, int, short = _cast("int64"), _cast("int32"), _cast("int16")
    char, byte, bool = _cast("int8"), _cast("uint8"), _cast("bool")

    # ---- autograd: not supported ----
    requires_grad_, backward = refused("requires_grad_"), refused("backward")
    retain_grad, register_hook = refused("retain_grad"), refused("register_hook")

    __hash__ = object.__hash__
