"""`simrank.predict_gemm`: times, intervals and the errors of its arguments."""

import numpy as np
import pytest

import simrank
from simrank.bench.predict_kernels import GEMM_DTYPES, check_extent
from simrank.errors import UnsupportedError


def test_a_prediction_has_a_time_an_interval_and_its_source():
    """In a graph; a launch alone starts later."""
    found = simrank.predict_gemm("hgx_h100", 4096, 8192, 8192)
    assert found.low_us < found.time_us < found.high_us
    assert 600 < found.tflops < 850
    assert found.tflops == pytest.approx(2 * 4096 * 8192**2 / found.time_us / 1e6)
    assert (found.basis, found.launch_us) == ("own", 2.35)
    assert found.source == "measured products of bfloat16 on h100_sxm"


def test_intervals_widen_with_the_distance_of_the_measured_device():
    """Own rows, a sibling's, none."""
    widths = []
    for cluster in ("hgx_h100", "hgx_h200", "mi300x"):
        found = simrank.predict_gemm(cluster, 1024, 4096, 4096)
        widths.append(found.high_us / found.low_us)
    assert widths == sorted(widths)
    assert "nothing was measured on MI300X" in found.source


@pytest.mark.parametrize("dtype", GEMM_DTYPES)
def test_every_dtype_is_predicted_on_blackwell(dtype):
    """Narrow ones are faster where arithmetic limits."""
    found = simrank.predict_gemm("gb300_nvl72", 8192, 8192, 8192, dtype=dtype)
    plain = simrank.predict_gemm("gb300_nvl72", 8192, 8192, 8192)
    assert found.time_us < (0.7 if GEMM_DTYPES[dtype] != "bfloat16" else 1.01) * plain.time_us


def test_a_sustained_clock_slows_arithmetic_and_not_memory():
    """By the share that the cluster states; attention alike."""
    boost, sustained = (
        {"name": "hgx_b200", "device": {"clocks": clocks}} for clocks in ("boost", "sustained")
    )
    large, small = (8192, 8192, 8192), (1, 8192, 8192)
    slower = [
        simrank.predict_gemm(sustained, *size).time_us / simrank.predict_gemm(boost, *size).time_us
        for size in (large, small)
    ]
    assert slower[0] == pytest.approx(1 / 0.88, rel=0.02)
    assert 1 <= slower[1] < 1.05
    times_us = [
        simrank.predict_attention(each, 32, 128, 8192, 8).time_us for each in (boost, sustained)
    ]
    assert 1.05 < times_us[1] / times_us[0] < 1 / 0.87


def test_wrong_arguments_are_named():
    """With the choices."""
    with pytest.raises(ValueError, match=r"dtype='bf16': expected one of bfloat16, float16"):
        simrank.predict_gemm("hgx_h100", 1, 1, 1, dtype="bf16")
    with pytest.raises(ValueError, match=r"m=0: expected a whole number from 1"):
        simrank.predict_gemm("hgx_h100", 0, 1, 1)
    with pytest.raises(ValueError, match=r"k=1\.5"):
        check_extent("k", 1.5)
    with pytest.raises(UnsupportedError, match=r"nvfp4 on H100 SXM"):
        simrank.predict_gemm("hgx_h100", 1, 1, 1, dtype="nvfp4")


def test_attention_has_a_time_an_interval_and_its_source():
    """Of prefill, causal: half of the scores count as operations."""
    found = simrank.predict_attention("hgx_h100", 32, 128, 8192, 2, kv_heads=8)
    assert found.low_us < found.time_us < found.high_us
    assert 400 < found.tflops < 800
    assert found.source == "measured prefill attention on h100_sxm, own"
    decode = simrank.predict_attention("hgx_h100", 32, 128, 8192, 64, kv_heads=8, phase="decode")
    read_bytes = 2 * 64 * 8 * 8192 * 128 * 2
    assert 0.7 < read_bytes / decode.time_us / 1e6 / 3.35 < 1
    sibling = simrank.predict_attention("hgx_h200", 32, 128, 8192, 64, kv_heads=8, phase="decode")
    assert sibling.basis == "sibling"
    assert sibling.time_us < 0.8 * decode.time_us


def test_wrong_attention_is_named():
    """With the choices, or the key of the cluster."""
    with pytest.raises(ValueError, match=r"phase='both': expected one of prefill, full, decode"):
        simrank.predict_attention("hgx_h100", 8, 128, 128, phase="both")
    with pytest.raises(ValueError, match=r"kv_heads=0"):
        simrank.predict_attention("hgx_h100", 8, 128, 128, kv_heads=0)
    with pytest.raises(UnsupportedError, match=r"attention on MI300X.*\n.*device\.measured_as"):
        simrank.predict_attention("mi300x", 8, 128, 128)


def test_nothing_is_faster_than_the_peak_or_the_memory():
    """Neither the time nor the lower end; A100's caches do not hold gigabytes."""
    for shape in ((128, 576, 1 << 20, 1, 1), (32, 128, 8192, 64, 8)):
        heads, head_dim, length, batch, kv_heads = shape
        for cluster, peak in (("hgx_h20", 148), ("hgx_a100", 312)):
            found = simrank.predict_attention(
                cluster, heads, head_dim, length, batch, kv_heads=kv_heads, phase="decode"
            )
            assert found.low_us <= found.time_us <= found.high_us
            assert 4e-6 * heads * batch * head_dim * length / found.low_us <= peak * 1.001
    read_bytes = 2 * 64 * 8 * 8192 * 128 * 2
    assert read_bytes / found.time_us / 1e6 < 2.04
    product = simrank.predict_gemm("hgx_h20", 4096, 4096, 4096)
    assert 2e-6 * 4096**3 / product.low_us <= 148.001


def test_a_kind_without_any_left_out_architecture_has_the_widest_interval():
    """RTX PRO 6000 has nvfp4, and no relative with rows of it."""
    found = simrank.predict_gemm("rtx_pro_6000_pcie", 4096, 4096, 4096, dtype="nvfp4")
    assert found.basis == "no relative"
    assert found.high_us / found.time_us > 1.5


def test_heads_of_keys_divide_heads():
    """As kernels have it; whole numbers of numpy are whole numbers."""
    with pytest.raises(ValueError, match=r"kv_heads=5: expected a divisor of heads=32"):
        simrank.predict_attention("hgx_h100", 32, 128, 4096, kv_heads=5)
    with pytest.raises(UnsupportedError, match=r"full attention on A100"):
        simrank.predict_attention("hgx_a100", 32, 128, 4096, phase="full")
    number = np.int64(4096)
    assert simrank.predict_gemm("hgx_h100", number, number, number).time_us > 0
