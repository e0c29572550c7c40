"""How far results in half precision are from fp32 ones rounded once."""

from __future__ import annotations

import warnings
from itertools import islice

import torch
from torch.nn import functional as F  # noqa: N812 - torch's custom.
from torch.utils import _pytree as tree
from torch.utils._python_dispatch import TorchDispatchMode

from tests.torch.cuda.sweep import RANDOM, SAMPLES, moved, op_db

HALF = (torch.bfloat16, torch.float16)


class Audit(TorchDispatchMode):
    """Computes every operator once more in fp32, rounds once, and keeps the largest difference."""

    def __init__(self):
        super().__init__()
        self.worst = {}
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: D105 - torch's.
        kwargs = kwargs or {}
        wide = tree.tree_map(_widened, (args, kwargs))
        is_half = any(_is_half(leaf) for leaf in tree.tree_leaves((args, kwargs)))
        actual = func(*args, **kwargs)
        if is_half and str(func) not in NOT_COMPARED and func.namespace == "aten":
            self._compare(str(func)[5:], actual, func(*wide[0], **wide[1]))
        return actual

    def _compare(self, name, actual, expected):
        pairs = zip(tree.tree_leaves(actual), tree.tree_leaves(expected), strict=True)
        for a, b in pairs:
            if not isinstance(a, torch.Tensor) or not a.numel() or not b.is_floating_point():
                continue
            self.count += 1
            a, b = a.double(), b.to(a.dtype).double()  # noqa: PLW2901
            finite = b.isfinite()
            if finite.any():
                difference = (a - b).abs()[finite].max().item()
                error = difference / (b[finite].abs().max().item() + 1e-6)
                error = float("inf") if error != error else error
                self.worst[name] = max(self.worst.get(name, 0.0), error)


# Their results depend on the dtype by definition, or are random, or only move or count.
NOT_COMPARED = {
    "aten._to_copy.default",
    "aten.copy_.default",
    "aten.view.dtype",
    "aten.nextafter.default",
    "aten.empty_like.default",
    "aten.rand_like.default",
    "aten.randn_like.default",
    "aten.bernoulli_.float",
    "aten.uniform_.default",
    "aten.normal_.default",
    "aten.native_dropout.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
    "aten.empty_strided.default",
    "aten.set_.source_Storage_storage_offset",
    "aten.frexp.Tensor",  # A mantissa of 1.0 is one of 0.5 with the next exponent.
}


def _is_half(value):
    return isinstance(value, torch.Tensor) and value.dtype in HALF


def _widened(value):
    """Return a tensor's fp32 twin; what is written is copied, too."""
    if not isinstance(value, torch.Tensor):
        return torch.float32 if value in HALF else value
    return value.float() if _is_half(value) else value.clone()


def run(mode, function, arguments):
    """Call a function on the device within the audit, and differentiate its first result."""

    def device_leaf(value):
        value = moved(value)
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value = value.detach().clone().requires_grad_()
        return value

    given = tree.tree_map(device_leaf, arguments)
    with mode:
        outs = tree.tree_leaves(function(*given))
        outs = [out for out in outs if isinstance(out, torch.Tensor) and out.requires_grad]
        if outs:
            weights = torch.randn(outs[0].shape, device="cuda").bfloat16().to(outs[0].dtype)
            outs[0].backward(weights)


def large(dtype):
    """Return functions of large tensors, where sums in half precision would show."""
    torch.manual_seed(0)
    n, c = 4096, 64
    x, y = torch.randn(n, c).to(dtype), torch.randn(n, c).to(dtype)
    w, b = torch.randn(c).to(dtype), torch.randn(c).to(dtype)
    m, e = torch.randn(c, c).to(dtype), torch.randn(8, c).to(dtype)
    i = torch.randint(0, 8, (n,))
    heads = (4, 4, 256, c)

    def at(t):
        return i.to(t.device)

    return {
        "sum": (lambda x: x.abs().sum(0), x),
        "mean": (lambda x: x.abs().mean(), x),
        "cumsum": (lambda x: x.abs().cumsum(0), x),
        "cumprod": (lambda x: (x / 8 + 1).cumprod(0), x[:64]),
        "var": (lambda x: x.var(0), x),
        "std": (lambda x: x.std(), x),
        "norm": (lambda x: x.norm(), x),
        "norm1": (lambda x: torch.linalg.vector_norm(x, 1, 0), x),
        "softmax": (lambda x: x.softmax(0), x),
        "log_softmax": (lambda x: x.log_softmax(1), x),
        "logsumexp": (lambda x: x.logsumexp(0), x),
        "logcumsumexp": (lambda x: x.logcumsumexp(0), x),
        "mm": (lambda x, y: x.T @ y, x, y),
        "linear": (F.linear, x, m, b),
        "bmm": (lambda x, y: x.view(4, 1024, c).transpose(1, 2) @ y.view(4, 1024, c), x, y),
        "layer_norm": (lambda x, w, b: F.layer_norm(x, (c,), w, b), x, w, b),
        "rms_norm": (lambda x, w: F.rms_norm(x, (c,), w), x, w),
        "group_norm": (lambda x, w, b: F.group_norm(x.view(64, c, 64), 8, w, b), x, w, b),
        "instance_norm": (lambda x: F.instance_norm(x.view(16, c, 256)), x),
        "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), x, w, b),
        "embedding": (lambda e: F.embedding(at(e), e), e),
        "embedding_bag": (lambda e: F.embedding_bag(at(e).view(2, -1), e, mode="sum"), e),
        "index_select": (lambda e: e.index_select(0, at(e)), e),
        "gather": (lambda e: e.gather(0, at(e)[:, None].expand(n, c)), e),
        "index": (lambda e: e[at(e)], e),
        "index_add": (lambda x, e: torch.zeros_like(e).index_add(0, at(e), x.abs()), x, e),
        "scatter_add": (
            lambda x, e: torch.zeros_like(e).scatter_add(0, at(e)[:, None].expand(n, c), x.abs()),
            x,
            e,
        ),
        "scatter_reduce": (
            lambda x, e: torch.zeros_like(e).scatter_reduce(
                0, at(e)[:, None].expand(n, c), x.abs(), "mean"
            ),
            x,
            e,
        ),
        "index_reduce": (
            lambda x, e: torch.ones_like(e).index_reduce(0, at(e), x.abs() / 4 + 0.8, "mean"),
            x,
            e,
        ),
        "index_put": (
            lambda x, e: torch.zeros_like(e).index_put((at(e),), x.abs(), accumulate=True),
            x,
            e,
        ),
        "cross_entropy": (lambda x: F.cross_entropy(x, at(x)), x),
        "nll_loss": (lambda x: F.nll_loss(x, at(x)), x),
        "mse_loss": (F.mse_loss, x, y),
        "l1_loss": (F.l1_loss, x, y),
        "smooth_l1_loss": (F.smooth_l1_loss, x, y),
        "kl_div": (lambda x, y: F.kl_div(x, y, log_target=True, reduction="batchmean"), x, y),
        "bce": (lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), x, y),
        "cosine": (F.cosine_similarity, x, y),
        "cdist": (lambda x, y: torch.cdist(x[:64], y[:64]), x, y),
        "gelu": (F.gelu, x),
        "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), x),
        "silu": (F.silu, x),
        "mish": (F.mish, x),
        "softplus": (F.softplus, x),
        "elu": (F.elu, x),
        "glu": (F.glu, x),
        "prelu": (F.prelu, x, w[:1]),
        "conv1d": (lambda x, m, b: F.conv1d(x.view(16, c, 256), m[:, :, None], b), x, m, b),
        "conv2d": (
            lambda x, m, b: F.conv2d(x.view(16, c, 16, 16), m[:, :, None, None], b),
            x,
            m,
            b,
        ),
        "attention": (
            lambda x, y: F.scaled_dot_product_attention(
                x.view(heads), y.view(heads), y.view(heads)
            ),
            x,
            y,
        ),
        "prod": (lambda x: (x[:64] / 8 + 1).prod(0), x),
        "bias": (lambda x, b: x + b, x, b),
        "scale": (lambda x, w: x * w, x, w),
        "dot": (lambda x, y: x.view(-1).abs() @ y.view(-1).abs(), x, y),
        "mv": (lambda x, w: x @ w, x, w),
        "addcmul": (lambda x, y: torch.addcmul(x, x, y, value=0.5), x, y),
        "lerp": (lambda x, y: torch.lerp(x, y, 0.3), x, y),
        "pow": (lambda x: x.pow(3), x),
        "avg_pool1d": (lambda x: F.avg_pool1d(x.T[None], 64), x),
        "avg_pool2d": (lambda x: F.avg_pool2d(x.view(4, c, 32, 32), 16), x),
        "adaptive_pool": (lambda x: F.adaptive_avg_pool2d(x.view(4, c, 32, 32), 2), x),
        "interpolate": (
            lambda x: F.interpolate(x.view(4, c, 32, 32), size=(5, 5), mode="bilinear"),
            x,
        ),
        "upsample": (lambda x: F.interpolate(x.view(4, c, 32, 32)[:, :, :4, :4], size=64), x),
        "grid_sample": (
            lambda x: F.grid_sample(
                x.view(4, c, 32, 32),
                x.view(-1)[: 4 * 8 * 8 * 2].view(4, 8, 8, 2).tanh(),
                align_corners=False,
            ),
            x,
        ),
        "renorm": (lambda x: x.renorm(2, 0, 1.0), x),
        "repeat": (lambda x: x[:4].repeat(512, 1), x),
        "expand": (lambda w: w.expand(n, c), w),
        "trapezoid": (lambda x: torch.trapezoid(x.abs(), dim=0), x),
    }


def audit(dtype, ops=op_db):
    """Return the audit of all operators with samples in a dtype, and of large tensors."""
    mode = Audit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for function, *arguments in large(dtype).values():
            run(mode, function, tuple(arguments))
        for op in ops:
            if dtype not in op.dtypes or op.name in RANDOM:
                continue
            for sample in islice(op.sample_inputs("cpu", dtype), SAMPLES):
                arguments = (sample.input, sample.args, sample.kwargs)
                try:
                    run(mode, lambda v, a, k, op=op: op(v, *a, **k), arguments)
                except (RuntimeError, TypeError, ValueError, AssertionError):
                    continue  # A kernel without this dtype, or a sample without gradients.
    return mode
