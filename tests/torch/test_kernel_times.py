"""The laws for kernels that no table of products has."""

import csv
import re
from math import prod
from statistics import fmean

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - torch's custom

from simrank.config.files import configs_dir
from simrank.hardware.load import load_cluster
from simrank.torch.cuda.operations import OperationFlag
from simrank.torch.devices import rank_devices
from simrank.torch.devices.attention import Attention, attention_flops, attention_ps, sdpa_kernel
from simrank.torch.devices.costs import (
    DTYPES,
    SoftmaxRows,
    cost_of,
    elements_ps,
    loss_ps,
    reduction_ps,
    softmax_passes,
    softmax_ps,
    sorted_sums_ps,
    times_read,
)
from tests.torch.devices.test_costs import operation, tensor

H100, A100 = (load_cluster(name).device for name in ("hgx_h100", "hgx_a100"))


def test_elements_cost_by_the_clock():
    """About 5 ps on an A100, 2.8 on an H100, at the mean rate of casts and broadcasts."""
    assert elements_ps(A100, 10**9, 1.38) / 1e9 == pytest.approx(4.8, rel=0.05)
    assert elements_ps(H100, 10**9, 1.38) / 1e9 == pytest.approx(2.8, rel=0.05)


def test_reductions_read_at_a_share_of_the_memory_s_rate():
    """A sum of 1 GB, and 5 us in which blocks wait for each other."""
    assert reduction_ps(H100, 10**9) == pytest.approx(1e21 / 2.9e12 + 5e6, rel=1e-6)
    assert reduction_ps(H100, 10**9, 0.5) == pytest.approx(2e21 / 2.9e12 + 5e6, rel=1e-6)


def test_softmaxes_of_rows_in_registers_take_instructions():
    """Half precision of 4,096 columns, at 1.1 elements of an SM in a clock; not short rows."""
    rows = 1 << 14
    short, middle = (SoftmaxRows(2 * rows * n, rows * n, n) for n in (1024, 4096))
    assert softmax_ps(H100, "_softmax", middle) == elements_ps(H100, rows * 4096, 1.1)
    memory_ps = 2 * short.num_bytes / H100.memory_bandwidth_bytes_per_s * 1e12
    assert softmax_ps(H100, "_softmax", short) == pytest.approx(memory_ps, rel=1e-6)


def test_norms_read_their_rows_more_than_once():
    """Once for the statistics; the norm of a vector is a reduction."""
    assert 1 < times_read("_fused_rms_norm") < times_read("native_layer_norm") < 2.5
    assert 3 < times_read("native_layer_norm_backward") < 3.5
    others = ("linalg_vector_norm", "_foreach_norm.Scalar", "add.Tensor")
    assert [times_read(name) for name in others] == [1, 1, 1]


@pytest.mark.parametrize("spec", [A100, H100])
def test_softmaxes_of_long_rows_read_them_again(spec):
    """Forward three reads and a write beyond 64 KiB, as published of cross-entropies."""
    forward, backward = "_log_softmax", "_log_softmax_backward_data"
    assert [softmax_passes(spec, forward, kib << 10) for kib in (16, 64, 256)] == [2, 2, 4]
    assert [softmax_passes(spec, backward, kib << 10) for kib in (16, 64, 256)] == [3, 3, 4]


def test_gradients_of_embeddings_sort_many_indices():
    """As published: 310 us beside the bytes for 4,096 rows, 516 us for 32,768; none for few."""
    assert sorted_sums_ps(A100, 16384, 4096, 768) / 1e6 == pytest.approx(310, rel=0.05)
    assert sorted_sums_ps(A100, 16384, 32768, 768) / 1e6 == pytest.approx(516, rel=0.06)
    assert sorted_sums_ps(A100, 3072, 32768, 768) == 0
    assert sorted_sums_ps(A100, 16384, 1, 768) < sorted_sums_ps(A100, 16384, 2, 768)


def test_one_block_averages_a_loss():
    """Published were 563 us by 32 threads for 16,384 rows, of which torch takes 1,024 today."""
    assert 32 * loss_ps(16384, is_backward=False) / 1e6 == pytest.approx(563, rel=0.05)
    backward_ps = loss_ps(16384, is_backward=True)
    assert backward_ps == pytest.approx(loss_ps(16384, is_backward=False) / 2)
    assert loss_ps(1, is_backward=False) == loss_ps(32, is_backward=False)
    assert loss_ps(0, is_backward=False) == 0


def test_cross_entropy_reads_its_logits_once(spawn):
    """The loss reads one element of a row."""
    x = torch.zeros(4096, 8192)

    def program(rank):
        logits, target = x.cuda(), torch.zeros(4096, dtype=torch.int64).cuda()
        times = []
        for function in (
            lambda: F.log_softmax(logits, -1),
            lambda: F.cross_entropy(logits, target),
        ):
            torch.cuda.synchronize()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
            torch.cuda._sleep(1_000_000)
            start.record()
            function()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e3)
        assert 15 < times[1] - times[0] < 30

    spawn(program, nprocs=1)


ONE = Attention(64, 4096, 4096, 256, is_causal=False, is_backward=False, is_flash=True)


def test_attention_takes_the_time_of_its_scores():
    """Quadratic in the length, with the published rates."""
    assert attention_flops(ONE) == 4 * 64 * 4096**2 * 128
    rate = attention_flops(ONE) / attention_ps(H100, "bfloat16", ONE) * 1e12
    assert 0.3 < rate / H100.peak_flops["bfloat16"] < 0.4
    double = ONE._replace(num_queries=8192, num_keys=8192)
    assert attention_ps(H100, "bfloat16", double) == pytest.approx(
        4 * attention_ps(H100, "bfloat16", ONE), rel=0.04
    )
    rates = []  # FlashAttention-3's figure 6: cuDNN's backward, 305 TFLOPS at 512 and 516 at 16k.
    for length in (512, 16384):
        heads = 16 * 16384 // length
        each = ONE._replace(num_heads=heads, num_queries=length, num_keys=length, is_backward=True)
        took_ps = attention_ps(H100, "bfloat16", each._replace(may_use_cudnn=True))
        rates.append(attention_flops(each) / took_ps)
    assert rates == pytest.approx([305, 516], rel=0.12)


def test_a_causal_mask_saves_less_than_half():
    """As much of half the time as the sequence is long."""
    saved = [
        1 - attention_flops(each._replace(is_causal=True), 512) / attention_flops(each)
        for each in (ONE._replace(num_queries=n, num_keys=n) for n in (512, 2048, 16384))
    ]
    assert saved[0] == 0
    assert saved[0] < saved[1] < saved[2] < 0.5


def test_backward_has_five_products_where_forward_has_two():
    """And the efficient kernels are slower than flash."""
    assert attention_flops(ONE._replace(is_backward=True)) == 2.5 * attention_flops(ONE)
    slower = ONE._replace(is_flash=False)
    assert attention_ps(A100, "float16", slower) > 1.5 * attention_ps(A100, "float16", ONE)


def test_torch_takes_cudnn_on_hopper_and_blackwell():
    """Unless the program disables it, or has a mask; and flash elsewhere."""
    free = ONE._replace(may_use_cudnn=True)
    b200, l40s = (load_cluster(name).device for name in ("hgx_b200", "l40s_pcie"))
    kernels = [sdpa_kernel(spec, free) for spec in (H100, b200, A100, l40s)]
    assert kernels == ["cudnn", "cudnn", "flash", "flash"]
    assert sdpa_kernel(H100, ONE) == "flash"
    assert sdpa_kernel(H100, free._replace(is_flash=False)) == "efficient"
    faster = attention_ps(H100, "bfloat16", ONE) / attention_ps(H100, "bfloat16", free)
    assert faster == pytest.approx(0.63 / 0.39)  # 595 beside 370 TFLOPS, both at 16k keys.
    narrow = free._replace(widths=128)
    assert attention_ps(H100, "bfloat16", narrow) > 0.7 * attention_ps(H100, "bfloat16", free)


def test_few_heads_leave_multiprocessors_idle():
    """One program takes as long as one wave of them."""
    one = ONE._replace(num_heads=1, num_queries=128)
    wave = one._replace(num_heads=H100.num_sms)
    assert attention_ps(H100, "bfloat16", one) == attention_ps(H100, "bfloat16", wave)


def test_a_program_that_disables_cudnn_takes_flash(spawn, monkeypatch):
    """As torch.nn.attention.sdpa_kernel does."""
    from torch.nn.attention import SDPBackend
    from torch.nn.attention import sdpa_kernel as enabled

    flags = []
    original = rank_devices.cost_of

    def cost_of(spec, operation):
        if "attention" in operation.name:
            flags.append(operation.flags)
        return original(spec, operation)

    monkeypatch.setattr(rank_devices, "cost_of", cost_of)
    monkeypatch.setattr(rank_devices, "_forms", {})

    def program(rank):
        q = torch.randn(1, 1, 256, 64, device="cuda", dtype=torch.bfloat16)
        with enabled(SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(q, q, q)
        torch.cuda.synchronize()

    spawn(program, 1)
    assert [each & OperationFlag.CUDNN for each in flags] == [0]


def test_attention_of_a_program_is_charged_as_attention(spawn, monkeypatch):
    """Forward and backward, causal or not, eagerly and replayed: by what the operator was given."""
    seen = []
    original = rank_devices.cost_of

    def cost_of(spec, operation):
        cost = original(spec, operation)
        if "attention" in operation.name:
            seen.append((operation.name, operation.flags, cost.duration_ps))
        return cost

    monkeypatch.setattr(rank_devices, "cost_of", cost_of)
    monkeypatch.setattr(rank_devices, "_forms", {})

    def program(rank):
        q, k, v = (
            torch.randn(1, 1, 2048, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            for _ in "qkv"
        )
        for is_causal in (False, True):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
            out.sum().backward()
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            F.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        seen.append(("replayed", 0, start.elapsed_time(end) * 1e9))

    spawn(program, 1)
    forward, backward = (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_backward",
    )
    of = {(name, bool(flags & OperationFlag.CAUSAL)): ps for name, flags, ps in seen}
    assert set(of) >= {(name, causal) for name in (forward, backward) for causal in (False, True)}
    assert of[backward, False] > 2 * of[forward, False]
    assert all(flags & OperationFlag.CUDNN for name, flags, _ in seen if name == forward)
    launch_ps = 2.5e6
    assert of["replayed", False] == pytest.approx(of[forward, True], abs=launch_ps)
    assert of[forward, True] < 0.9 * of[forward, False]


def test_products_of_a_program_are_rounded_where_it_allows_it(spawn, monkeypatch):
    """By old and new settings; convolutions unless it forbids it."""
    flags = {}
    original = rank_devices.cost_of

    def cost_of(spec, operation):
        flags.setdefault(operation.name, []).append(operation.flags & OperationFlag.TF32)
        return original(spec, operation)

    monkeypatch.setattr(rank_devices, "cost_of", cost_of)
    monkeypatch.setattr(rank_devices, "_forms", {})
    # A test that imports torch's own suite forbids changes for the process.
    frozen = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(frozen, "__allow_nonbracketed_mutation_flag", True)

    def program(rank):
        x = torch.ones(4, 4, device="cuda")
        convolve = torch.nn.Conv2d(1, 1, 1, device="cuda")
        for precision in ("highest", "medium"):
            torch.set_float32_matmul_precision(precision)
            torch.mm(x, x)
            torch.cuda.synchronize()
        torch.mm(x.bfloat16(), x.bfloat16())
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        torch.bmm(x[None], x[None])
        convolve(x[None])
        torch.cuda.synchronize()
        torch.backends.cudnn.allow_tf32 = False
        convolve(x[None])
        torch.cuda.synchronize()

    spawn(program, 1)
    tf32 = OperationFlag.TF32
    assert flags["mm"] == [0, tf32, 0]
    assert flags["bmm"] == [tf32]
    assert flags["convolution"] == [tf32, 0]


# ---- costs of torch's operators beside kernels that were measured on one H200 ----

SPEC = load_cluster("hgx_h200").device
NUMBERS = {name: number for number, (name, _) in reversed(DTYPES.items())}
GAP_US = (
    0.74  # Between kernels that follow each other; a measured time is that of the kernel alone.
)
FITTED, HELD_OUT = "yes", "no"


def parsed(name, operands, flags):
    """Return the operation of a row: `2*float32[8x4]! int64[8]@2 -> float32[8x4]`."""
    inputs, _, outputs = operands.partition("->")
    flag = OperationFlag.TF32 if flags == "tf32" else OperationFlag(0)
    return operation(name, list(_tensors(inputs)), list(_tensors(outputs, is_made=True)), flag)


def _tensors(text, *, is_made=False):
    for word in text.split():
        count, dtype, sizes, strides, mark = re.fullmatch(
            r"(?:(\d+)\*)?(\w+)\[([\dx]*)\](?:@([\dx]+))?(!?)", word
        ).groups()
        one = tensor(
            *_numbers(sizes),
            dtype=NUMBERS[dtype],
            strides=_numbers(strides) if strides else None,
            is_written=is_made or bool(mark),
        )
        yield from [one] * int(count or 1)


def _numbers(text):
    return tuple(map(int, filter(None, text.split("x"))))


def rows():
    """Yield each row and the error of its prediction, as a share of the measured time."""
    with (configs_dir() / "torch" / "h200.csv").open() as file:
        for row in csv.DictReader(file):
            found = parsed(row["operator"], row["operands"], row["flags"])
            predicted_us = cost_of(SPEC, found).duration_ps / 1e6
            yield row, predicted_us / (float(row["measured_us"]) + GAP_US) - 1


# Bounds of the mean and of the largest error. Gradients that are squared are charged as two
# tensors (`addcmul_`), and rows of 16 MiB as if L2 held none of them.
@pytest.mark.parametrize(("part", "mean", "most"), [(FITTED, 0.09, 0.35), (HELD_OUT, 0.07, 0.35)])
def test_operators_take_what_was_measured(part, mean, most):
    """On the rows that constants were fitted to, and on every second row of an operator."""
    errors = {
        (row["operator"], row["operands"], row["flags"]): error
        for row, error in rows()
        if row["fitted"] == part
    }
    assert fmean(map(abs, errors.values())) < mean
    assert {each: error for each, error in errors.items() if abs(error) > most} == {}


def test_rates_of_rows_are_those_of_their_times():
    """Operations of products, counted bytes of everything else."""
    for row, _ in rows():
        found = parsed(row["operator"], row["operands"], row["flags"])
        rate, unit = row["achieved"].split()
        work = cost_of(SPEC, found).bytes_moved
        if unit == "TFLOPS":
            (m, k), (_, n) = (each.sizes for each in found.inputs)
            work = 2 * prod((m, n, k))
        assert work / float(row["measured_us"]) / 1e6 == pytest.approx(float(rate), rel=0.05)
