"""Products on any device: its own rows, a sibling's, or the rule alone."""

from dataclasses import replace

import numpy as np
import pytest

from simrank.config.locate import builtin_clusters
from simrank.hardware import kernel_ps, load_cluster
from simrank.hardware.gemm_model import NO_RELATIVE, OWN, SIBLING, product_model, product_ps
from simrank.hardware.gemm_rows import ANY, measured_devices, read_fits, read_rows
from simrank.hardware.spec import START_US

H100 = load_cluster("hgx_h100").device
LARGE = (1, 4096, 4096, 4096)


@pytest.mark.parametrize(
    ("cluster", "basis", "relation"),
    [
        ("hgx_h100", "h100_sxm", OWN),
        ("hgx_b200", "b200_sxm", OWN),
        ("hgx_a100", "a100_sxm", OWN),
        ("l40s_pcie", "l40s", OWN),
        ("gb200_nvl72", "gb200", OWN),
        ("mi355x", "mi355x", OWN),
        ("hgx_h200", "h100_sxm", SIBLING),
        ("gh200_slingshot", "h100_sxm", SIBLING),
        ("gb300_nvl72", "b300_sxm", SIBLING),
        ("mi300x", "mi355x", NO_RELATIVE),
        ("rtx_pro_6000_pcie", "l40s", NO_RELATIVE),
    ],
)
def test_a_cluster_names_the_rows_that_its_device_takes(cluster, basis, relation):
    """They are its own where peak, SMs and memory agree."""
    model = product_model(load_cluster(cluster).device, "bfloat16")
    assert (model.basis, model.relation) == (basis, relation)


@pytest.mark.parametrize("cluster", builtin_clusters())
def test_every_cluster_predicts_a_large_product_at_a_share_of_its_peak(cluster):
    """Between 0.4 and 1 of it."""
    spec = load_cluster(cluster).device
    rate = 2 * 4096**3 / (product_ps(spec, "bfloat16", LARGE) * 1e-12)
    assert 0.4 < rate / spec.peak_flops["bfloat16"] < 1


def test_a_measured_row_is_predicted_within_the_noise():
    """At least 90 % of the rows of each device are within 15 %."""
    for cluster, name in (("hgx_h100", "h100_sxm"), ("hgx_b200", "b200_sxm")):
        model = product_model(load_cluster(cluster).device, "bfloat16")
        sizes, times_us = read_rows("bfloat16")[name]
        products = [tuple(map(int, size)) for size in sizes[::10]]
        found = np.array([model.time_us(product) for product in products])
        assert np.percentile(np.abs(np.log(found / times_us[::10])), 90) < 0.15


def test_unknown_devices_take_the_nearest_constants():
    """By compute capability, else those of all devices; a stated best product scales the peak."""
    plain = replace(H100, measured_as=None)
    assert product_model(plain, "bfloat16").basis == "h100_sxm"
    assert product_model(plain, "bfloat16").relation == NO_RELATIVE
    unknown = replace(plain, name="X1")
    assert product_model(unknown, "bfloat16").basis == ANY
    slow = replace(unknown, best_product_flops=400 * 10**12)
    slower = product_ps(slow, "bfloat16", LARGE) / product_ps(unknown, "bfloat16", LARGE)
    assert 1.5 < slower < 2.2
    other = replace(H100, name="RTX PRO 6000")
    assert product_model(replace(other, num_sms=188), "bfloat16").relation == NO_RELATIVE


def test_the_largest_products_reach_the_best_one():
    """MI300X's is 668 TFLOPS; the rule has the constants of MI355X, whose rows are small."""
    spec = load_cluster("mi300x").device
    sizes = [(1, n, n, k) for n in (8192, 16384, 20480) for k in (8192, 16384)]
    rates = [2e12 * n * n * k / product_ps(spec, "bfloat16", (1, n, n, k)) for _, n, _, k in sizes]
    assert 0.94 < max(rates) / spec.best_product_flops < 1


def test_a_product_that_is_launched_starts_later_than_in_a_graph():
    """And a library's product of float8 leaves out what quantises the activations."""
    graph_ps = product_ps(H100, "bfloat16", LARGE)
    assert kernel_ps(H100, 2 * 4096**3, "bfloat16", 0, LARGE) == graph_ps + START_US * 1e6
    with_quantising_us = product_model(H100, "fp8").time_us(LARGE)
    alone_us = product_ps(H100, "float8_e4m3fn", LARGE) / 1e6
    assert 2 * 4096**3 / 1979e12 * 1e6 < alone_us < with_quantising_us - 3


def test_dtypes_without_rows_or_peak_have_no_model():
    """float32, fp8 on A100, nvfp4 before Blackwell; products of no size."""
    a100 = load_cluster("hgx_a100").device
    assert product_ps(H100, "float32", LARGE) is None
    assert product_ps(H100, "bfloat16", (1, 0, 64, 64)) is None
    assert product_model(a100, "fp8") is None
    assert product_model(H100, "nvfp4") is None
    b200 = load_cluster("hgx_b200").device
    gb300 = load_cluster("gb300_nvl72").device
    peaks = [product_model(each, "nvfp4").machine.peak_flops for each in (b200, gb300)]
    assert peaks == [9000e12, 15000e12]


@pytest.mark.parametrize("name", ["h100_sxm", "b200_sxm", "b300_sxm", "gb200"])
def test_block_scaled_products_take_what_products_with_one_scale_take(name):
    """Of devices with both kernels: 89 % within a factor of 1.5, the median within 20 %."""
    machine = measured_devices()[name].machine_in("fp8")
    block, plain = (read_fits()[kind, name] for kind in ("fp8_block", "fp8"))
    sizes, times_us = read_rows("fp8_block")[name]
    kept = ~block.falls_back(sizes)
    factors = np.abs(np.log(plain.time_us(machine, sizes[kept], "fp8") / times_us[kept]))
    assert np.mean(factors < np.log(1.5)) > 0.89
    assert np.median(factors) < np.log(1.2)


def test_a_fallback_is_not_lent_to_a_later_generation():
    """Ada has no block-scaled kernel: L40S's 163 us are no floor of a Blackwell card."""
    ada, blackwell = (
        product_model(load_cluster(name).device, "fp8_block")
        for name in ("rtx_4090_pcie", "rtx_pro_6000_pcie")
    )
    small = (1, 16, 1024, 1024)
    assert ada.time_us(small) > 150
    assert blackwell.time_us(small) < 15
    assert (blackwell.kind, blackwell.relation) == ("fp8", NO_RELATIVE)
