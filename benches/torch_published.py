"""Simulated beside published times of plain torch: how far a profile of a simulated step is right.

`python benches/torch_published.py [--json FILE] [--only KIND]` runs norms and rotary embeddings as
models spell them out, losses, lookups and attention on simulated devices, and prints the times of
CUDA events beside the published ones. The published cards are PCIe and NVL cards, but for version
0.2.1: their memory's bandwidth replaces that of the built-in clusters, 0.87 of the data sheet, and
H100 NVL's peak in float32 that of H100 SXM, since it is the clock's. Kernels were those of torch
before 2.6: casts to bfloat16 were not vectors (torch's #137053), and softmaxes of 4,096 columns not
in registers, so the latter are left out.

Sources: Liger-Kernel 0.5.2, benchmark/data/{a100,h100}_all_benchmark_data.csv, and of 0.2.1 (A100
SXM) all_benchmark_data.csv, its baselines in plain torch (bfloat16; LayerNorm, losses and lookups
float32), which some of our constants are fitted to, where only both directions were published less
the forward one; FlashAttention-2 in triton-lang/triton#1975 (A100) and #2459 (H100); cuDNN's
attention and FlashAttention-2 on H100 SXM in figures 5 and 6 of FlashAttention-3 (arXiv
2407.08608), whose rates at 16k keys ours are.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
import yaml
from published import show
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's custom
from torch.nn.attention import SDPBackend, sdpa_kernel

import simrank
from simrank.config.locate import locate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BANDWIDTHS = {"hgx_a100": "1.68 TB/s", "hgx_h100": "3.43 TB/s"}  # A100 PCIe, H100 NVL.
FLOAT32_PEAKS = {"hgx_h100": "60 TFLOPS"}  # NVIDIA H100 NVL data sheet: a clock of 1.78 GHz.
_REGISTER_SOFTMAX = 4096  # Columns of a newer kernel.
LIGER, FLASH = "Liger-Kernel 0.5.2", "triton-lang/triton#1975, #2459"
LIGER_SXM = "Liger-Kernel 0.2.1"
FA3 = "arXiv 2407.08608"


class Case(NamedTuple):
    """One published time.

    Attributes:
        cluster: On what.
        kind: What ran, see `KINDS`.
        size: Of it.
        is_backward: Which direction.
        adds_up: Of backward, whether the leaves have gradients, which it adds to.
        published: What was measured, in microseconds.
        source: By whom.
        is_causal: Of attention, whether it has a causal mask.
        kernel: Of attention on H100, which of torch's kernels ran.
    """

    cluster: str
    kind: str
    size: int
    is_backward: bool
    published: float
    source: str = LIGER
    is_causal: bool = True
    kernel: str = "cudnn"
    adds_up: bool = False


_LOSS_ROWS, _LOSS_ELEMENTS = 16384, 1 << 26
# The time of nll_loss, whatever the vocabulary: 32 threads then, up to 1,024 in torch 2.13.
_FORWARD_LOSS_US, _BACKWARD_LOSS_US = 563.0, {"hgx_a100": 291.0, "hgx_h100": 333.0}
# vocabulary -> microseconds of a cross-entropy forward, and of both directions.
_LOSSES = {
    ("hgx_h100", LIGER): {4096: (742.4, 1620.4), 16384: (1291.3, 3869.0),
                          32768: (2488.8, 7732.5), 65536: (5395.4, 15649.0)},
    ("hgx_a100", LIGER_SXM): {4096: (875.1, 2226.0), 16384: (1952.2, 6802.3),
                              32768: (5316.8, 15486.0), 65536: (10615.1, 30778.1)},
}  # fmt: skip


def _loss_rows(vocabulary: int) -> int:
    """Return the simulated rows: all of the published ones, or as many as fit 256 MiB."""
    return min(_LOSS_ROWS, _LOSS_ELEMENTS // vocabulary)


def _loss_cases() -> Iterator[Case]:
    """Yield cross-entropies without the time of nll_loss."""
    for (cluster, source), times in _LOSSES.items():
        for size, (forward, both) in times.items():
            share = _loss_rows(size) / _LOSS_ROWS
            us = share * (forward - _FORWARD_LOSS_US)
            if size != _REGISTER_SOFTMAX:
                yield Case(cluster, "log_softmax", size, False, us, source)
            us = share * (both - forward - _BACKWARD_LOSS_US[cluster])
            yield Case(cluster, "cross_entropy", size, True, us, source, adds_up=True)


# Published were 192 and 256 heads, which take as much longer.
HEADS = {64: 96, 128: 27}
TOKENS = 16384


def _flash_us(length: int, width: int, tflops: float, factor: float) -> float:
    """Return the time of causal attention whose operations were published per second."""
    return factor * 2 * HEADS[width] * length * length * width / tflops / 1e6


def _fa3_us(length: int, tflops: float, *, causal: bool, backward: bool) -> float:
    """Return the time of all tokens of 2,048 features, as figures 5 and 6 of the paper count."""
    flops = 4 * TOKENS * length * 2048 / (2 if causal else 1) * (2.5 if backward else 1)
    return flops / tflops / 1e6


# (width of a head, causal mask, backward, kernel) -> TFLOPS at 512, 1k, 2k, 4k, 8k, 16k tokens.
_FIGURES = {
    (64, False, False, "cudnn"): (335, 373, 395, 408, 412, 413),
    (128, False, False, "cudnn"): (497, 574, 617, 609, 600, 595),
    (128, True, False, "cudnn"): (315, 410, 484, 518, 529, 539),
    (128, False, True, "cudnn"): (305, 408, 465, 499, 518, 516),
    (64, False, True, "cudnn"): (266, 348, 395, 417, 432, 433),
    (64, False, False, "flash"): (282, 306, 318, 321, 322, 324),
    (128, False, False, "flash"): (309, 350, 362, 368, 370, 370),
    (128, True, False, "flash"): (191, 260, 298, 319, 333, 335),
    (128, False, True, "flash"): (214, 260, 291, 310, 318, 322),
}
_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


def _figures() -> Iterator[Case]:
    """Yield the published rates of short sequences on H100 SXM: numbers are computed, too."""
    for (width, causal, backward, kernel), rates in _FIGURES.items():
        for length, tflops in list(zip(_LENGTHS, rates, strict=True))[: 1 if backward else 2]:
            us = _fa3_us(length, tflops, causal=causal, backward=backward)
            kind = f"attention_16k_{width}"
            yield Case("hgx_h100", kind, length, backward, us, FA3, causal, kernel)


CASES = (
    *(Case("hgx_h100", "rms_norm", size, False, us) for size, us in
      ((1024, 60.4), (2048, 90.7), (4096, 179.5), (8192, 326.1))),
    *(Case("hgx_h100", "rms_norm", size, True, us) for size, us in
      ((1024, 145.4), (2048, 233.9), (4096, 443.3), (8192, 810.0))),
    *(Case("hgx_h100", "layer_norm", size, False, us) for size, us in
      ((1024, 23.9), (2048, 38.3), (4096, 63.0), (8192, 140.9))),
    *(Case("hgx_h100", "rotary", size, False, us) for size, us in
      ((1024, 189.5), (2048, 343.6), (4096, 649.4))),
    *(Case("hgx_h100", "rotary", size, True, us) for size, us in
      ((1024, 236.0), (2048, 426.5), (4096, 802.5))),
    *(Case("hgx_a100", "rms_norm", size, False, us) for size, us in
      ((1024, 78.8), (2048, 138.2), (4096, 282.6), (8192, 523.3))),
    *(Case("hgx_a100", "rms_norm", size, True, us) for size, us in
      ((1024, 199.7), (2048, 367.6), (4096, 752.6), (8192, 1376.3))),
    *(Case("hgx_a100", "layer_norm", size, False, us) for size, us in
      ((1024, 33.8), (2048, 56.3), (4096, 121.9), (8192, 258.0))),
    Case("hgx_a100", "rotary", 2048, False, 519.2),
    Case("hgx_a100", "rotary", 2048, True, 626.7),
    *(Case("hgx_h100", "attention_64", size, False, _flash_us(size, 64, tflops, 1), FLASH,
           kernel="flash")
      for size, tflops in ((1024, 197.9), (2048, 259.2))),
    *(Case("hgx_a100", "attention_128", size, True, _flash_us(size, 128, tflops, 2.5), FLASH)
      for size, tflops in ((1024, 90.8), (2048, 127.5))),
    *_figures(),
    *_loss_cases(),
    *(Case("hgx_h100", "layer_norm", size, True, us) for size, us in
      ((1024, 50.4), (4096, 154.8), (8192, 313.4))),
    *(Case("hgx_a100", "layer_norm", size, True, us, LIGER_SXM) for size, us in
      ((1024, 84.7), (4096, 309.6), (8192, 572.0))),
    Case("hgx_h100", "rotary_64", 2048, False, 111.2),
    Case("hgx_h100", "rotary_64", 2048, True, 142.0),
    *(Case("hgx_a100", "embedding", size, True, us, LIGER_SXM, adds_up=True) for size, us in
      ((4096, 377.1), (32768, 785.7), (131072, 1472.4))),
)  # fmt: skip


class RmsNorm(nn.Module):
    """Root mean square norm, as models write it in torch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x over its root mean square, weighted; [rows, width]."""
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def rms_norm(width: int):  # noqa: ANN201 - a function and its inputs
    """Return a norm of 2,048 rows."""
    module = RmsNorm(width).to("cuda", torch.bfloat16)
    x = torch.randn(2048, width, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    return module, [x, module.weight]


def layer_norm(width: int):  # noqa: ANN201 - a function and its inputs
    """Return torch's norm of 4,096 rows."""
    x = torch.randn(4096, width, device="cuda", requires_grad=True)
    module = nn.LayerNorm(width, device="cuda")
    return module, [x, *module.parameters()]


def _rotated(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rotary(length: int, width: int = 256):  # noqa: ANN201 - a function and its inputs
    """Return rotary embeddings of 32 heads of queries and 8 of keys."""
    q, k = (
        torch.randn(
            1, length, heads, width, dtype=torch.bfloat16, device="cuda", requires_grad=True
        )
        for heads in (32, 8)
    )
    cos, sin = (torch.randn(1, 1, length, width, dtype=torch.bfloat16, device="cuda") for _ in "cs")

    def embed(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        both = (q.transpose(1, 2), k.transpose(1, 2))
        return tuple(x * cos + _rotated(x) * sin for x in both)

    return embed, [q, k]


def log_softmax(vocabulary: int):  # noqa: ANN201 - a function and its inputs
    """Return a softmax over a vocabulary."""
    x = torch.ones(_loss_rows(vocabulary), vocabulary, device="cuda", requires_grad=True)
    return partial(F.log_softmax, dim=-1), [x]


def cross_entropy(vocabulary: int):  # noqa: ANN201 - a function and its inputs
    """Return a loss over a vocabulary."""
    _, inputs = log_softmax(vocabulary)
    target = torch.zeros(_loss_rows(vocabulary), dtype=torch.int64, device="cuda")
    return partial(F.cross_entropy, target=target), inputs


def embedding(vocabulary: int):  # noqa: ANN201 - a function and its inputs
    """Return a lookup of 16,384 rows, 768 wide."""
    weight = torch.ones(vocabulary, 768, device="cuda", requires_grad=True)
    return partial(F.embedding, torch.randint(vocabulary, (32, 512), device="cuda")), [weight]


def _attention(length: int, width: int):  # noqa: ANN202 - a function and its inputs
    shape = (1, HEADS[width], length, width)
    inputs = [
        torch.randn(shape, dtype=torch.float16, device="cuda", requires_grad=True) for _ in "qkv"
    ]
    return F.scaled_dot_product_attention, inputs


def _attention_16k(length: int, width: int):  # noqa: ANN202 - a function and its inputs
    shape = (TOKENS // length, 2048 // width, length, width)
    inputs = [
        torch.randn(shape, dtype=torch.float16, device="cuda", requires_grad=True) for _ in "qkv"
    ]
    return F.scaled_dot_product_attention, inputs


KINDS: dict[str, Callable[[int], tuple]] = {
    "rms_norm": rms_norm,
    "layer_norm": layer_norm,
    "rotary": rotary,
    "rotary_64": partial(rotary, width=64),
    "log_softmax": log_softmax,
    "cross_entropy": cross_entropy,
    "embedding": embedding,
    "attention_64": lambda length: _attention(length, 64),
    "attention_128": lambda length: _attention(length, 128),
    "attention_16k_64": lambda length: _attention_16k(length, 64),
    "attention_16k_128": lambda length: _attention_16k(length, 128),
}


def _given(function, inputs):  # noqa: ANN001, ANN202 - a function and its inputs
    """Return what a function is called with: a module has its parameters already."""
    return inputs[:1] if isinstance(function, nn.Module) else inputs


def measured_us(case: Case) -> float:
    """Return what events measure around one direction, with the host ahead of the device."""
    if case.kernel == "flash":
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return _timed_us(case)
    return _timed_us(case)


def _timed_us(case: Case) -> float:
    """Return the time of a case with the kernels that are enabled."""
    function, inputs = KINDS[case.kind](case.size)
    if case.kind.startswith("attention"):
        function = partial(F.scaled_dot_product_attention, is_causal=case.is_causal)
    leaves, gradients = [], []
    if case.is_backward:
        outputs = function(*_given(function, inputs))
        leaves = outputs if isinstance(outputs, tuple) else (outputs,)
        gradients = [torch.ones_like(leaf) for leaf in leaves]
    if case.adds_up:
        torch.autograd.backward(leaves, gradients, retain_graph=True)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000)  # noqa: SLF001 - torch's name; benchmarks clear the cache here
    start.record()
    if case.adds_up:
        torch.autograd.backward(leaves, gradients)
    elif case.is_backward:
        torch.autograd.grad(leaves, inputs, gradients)
    else:
        function(*_given(function, inputs))
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3


def cluster_of(case: Case) -> dict:
    """Return a built-in cluster with the memory and the clock of the card that was measured."""
    found = yaml.safe_load(locate("clusters", case.cluster).read_text())
    if case.source != LIGER_SXM:
        found["device"]["memory_bandwidth"] = BANDWIDTHS[case.cluster]
    if case.source == LIGER and case.cluster in FLOAT32_PEAKS:
        found["device"]["peak_flops"]["float32"] = FLOAT32_PEAKS[case.cluster]
    return found


def simulated_us(case: Case) -> float:
    """Return the simulated time of a case."""
    found: list[float] = []
    with simrank.Context(cluster_of(case)) as context:
        context.multiprocessing.spawn(
            lambda _: found.append(measured_us(case)), nprocs=1, share_args=True
        )
    return found[0]


def named(case: Case) -> str:
    """Return a case as its row begins."""
    direction = "backward" if case.is_backward else "forward"
    is_attention = case.kind.startswith("attention")
    kernel = f"{case.kernel} {'causal' if case.is_causal else ''}" if is_attention else ""
    return f"{case.kind:<18}{case.cluster:<10}{case.size:>6} {direction:<9}{kernel:<13}"


if __name__ == "__main__":
    show(__doc__, CASES, simulated_us, named)
