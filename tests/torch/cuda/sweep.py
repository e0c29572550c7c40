"""Every operator that torch has samples for, on a device and on the host."""

from __future__ import annotations

import warnings
from itertools import islice

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as tree

SAMPLES = 4
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
# These cannot be compared so: a view of memory beyond the tensor, which a move leaves behind, and
# a tensor that must stay on the host, as the error says, which is CUDA's. Batch norms that use the
# running statistics save them on CUDA and nothing on the host (torch/_decomp/decompositions.py).
_SAVED = "torch.Size([2]) != torch.Size([0])"
NOT_COMPARED = {
    "as_strided.partial_views": "not close",
    "tensor_split": "to be on cpu",
    "native_batch_norm": _SAVED,
    "_native_batch_norm_legit": _SAVED,
}
RANDOM = {
    "bernoulli",
    "multinomial",
    "normal",
    "randn",
    "rand",
    "randint",
    "randn_like",
    "rand_like",
    "randint_like",
    "uniform",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "empty",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "new_empty",
    "new_empty_strided",
    "svd_lowrank",
    "pca_lowrank",
    "nn.functional.dropout",
    "nn.functional.dropout2d",
    "nn.functional.dropout3d",
    "nn.functional.alpha_dropout",
    "nn.functional.feature_alpha_dropout",
    "nn.functional.rrelu",
    "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d",
    "nn.functional.multi_head_attention_forward",
    "nn.functional.scaled_dot_product_attention",
}


def name_of(op):
    """Return an operator's name with its variant."""
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def dtype_of(op):
    """Return the dtype in which an operator is compared."""
    for dtype in (torch.float32, torch.int64, torch.bool):
        if dtype in op.dtypes:
            return dtype
    return next(iter(op.dtypes), torch.float32)


def moved(value, device="cuda"):
    """Return a sample's argument as it is on the device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, torch.device):
        return torch.device(device, 0)
    return device if isinstance(value, str) and value == "cpu" else value


def dense(tensor):
    """Return a tensor's numbers on the host."""
    tensor = tensor.detach().cpu()
    if tensor.dtype in FP8:
        tensor = tensor.float()
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def compare(actual, expected, tolerance):
    """Assert that results are the same, wherever they are."""
    pairs = zip(tree.tree_leaves(actual), tree.tree_leaves(expected), strict=True)
    for a, b in pairs:
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(
                dense(a), dense(b), atol=tolerance, rtol=tolerance, equal_nan=True,
                check_stride=False,
            )  # fmt: skip


def on_both(op, sample, call):
    """Return what `call` gives on the device and on the host, or None where the host refuses."""
    arguments = (sample.input, sample.args, sample.kwargs)
    host, device = tree.tree_map(lambda v: v, arguments), tree.tree_map(moved, arguments)
    torch.manual_seed(0)
    try:
        expected = call(op, *host)
    except Exception:  # noqa: BLE001 - whatever it is, the host refuses.
        return None
    torch.manual_seed(0)
    return call(op, *device), expected


def forward(op, value, args, kwargs):
    """Return the result."""
    return op(value, *args, **kwargs)


def gradient(op, value, args, kwargs):
    """Return the gradient of the first differentiable result by the input."""
    value = value.detach().clone().requires_grad_()
    leaves = tree.tree_leaves(op(value, *args, **kwargs))
    results = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    results[0].sum().backward()
    return value.grad


def check(op):
    """Assert that an operator's results and gradients are the host's; return how many were."""
    dtype, compared = dtype_of(op), 0
    for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=False), SAMPLES):
        both = on_both(op, sample, forward)
        if both is None:
            continue
        compared += 1
        if op.name not in RANDOM:
            compare(*both, tolerance=1e-4)
        differentiable = op.supports_autograd and dtype.is_floating_point
        if differentiable and isinstance(sample.input, torch.Tensor) and op.name not in RANDOM:
            both = on_both(op, sample, gradient)
            if both is not None and both[1] is not None:
                compared += 1
                compare(*both, tolerance=1e-3)
    return compared


def sweep(ops=op_db, tell=lambda _line: None):
    """Return how many operators are right, what is wrong with others, and how much was compared."""
    wrong, right, compared = {}, 0, 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in ops:
            try:
                compared += check(op)
                right += 1
            except Exception as error:  # noqa: BLE001 - it is reported by name.
                text = str(error).strip() or type(error).__name__
                wrong[name_of(op)] = f"{type(error).__name__}: {text.splitlines()[0][:150]}"
                tell(f"{name_of(op)}: {wrong[name_of(op)]}")
    return right, wrong, compared
