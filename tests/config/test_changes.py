"""Changed keys beside the name of a built-in cluster, in a mapping or a file."""

import pytest

from simrank.config import load_cluster_config
from simrank.errors import ConfigError


def test_a_file_may_be_a_builtin_cluster_with_changed_keys(tmp_path):
    """Their source is "assumed"; a file with links is a whole cluster."""
    path = tmp_path / "own.yaml"
    path.write_text("name: hgx_h200\ndevice: {memory: 80 GB}\nnccl: {channels: 16}\n")
    config = load_cluster_config(path)
    usual = load_cluster_config("hgx_h200")
    assert (config.device.memory_bytes, config.device.num_sms) == (80 * 10**9, 132)
    assert config.nccl.channels == 16
    assert config.links == usual.links
    assert config.device.source["memory"] == "assumed, beside the cluster's name"


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ({"clocks": "sustained"}, "device.clocks: expected sustained_clock beside it"),
        ({"clocks": "sustained", "sustained_clock": 1.1}, "expected a number above 0, at most 1"),
        ({"clock": "sustained"}, "device.clock: expected one of name, count"),
        ({"clocks": "low"}, "device.clocks: expected one of boost, sustained, got low"),
    ],
)
def test_a_sustained_clock_must_be_stated(device, message):
    """None is known for H20."""
    with pytest.raises(ConfigError) as caught:
        load_cluster_config({"name": "hgx_h20", "device": device})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ({"power_limit": "700 W"}, "expected rated_power beside it; none is known for H20"),
        ({"power_limit": "500 W", "rated_power": "700 W"}, "expected idle_power beside it"),
        (
            {"power_limit": "0.9 kW", "rated_power": "700 W", "idle_power": "70 W"},
            "expected a power above 70 W, at most 700 W, got 900 W",
        ),
        ({"power_limit": 500}, "write the unit, for example `500 W`"),
        (
            {"power_limit": "1 W", "rated_power": "2 W", "idle_power": "1 mW"},
            "expected a power of at least 1 W",
        ),
    ],
)
def test_a_power_limit_is_compared_with_stated_powers(device, message):
    """None is known for H20."""
    with pytest.raises(ConfigError) as caught:
        load_cluster_config({"name": "hgx_h20", "device": device})
    assert message in str(caught.value)


def test_a_power_limit_lowers_the_rate_of_arithmetic():
    """An operation costs the same energy at any lower clock; the idle power is not spent on it."""
    device = {"power_limit": "500 W"}
    config = load_cluster_config({"name": "hgx_h100", "device": device})
    assert config.device.arithmetic_share == pytest.approx(430 / 630)
    both = load_cluster_config({"name": "hgx_h100", "device": {**device, "clocks": "sustained"}})
    assert both.device.arithmetic_share == pytest.approx(0.92 * 430 / 630)
    assert load_cluster_config("hgx_h100").device.arithmetic_share == 1


def test_a_table_of_products_refuses_another_clock():
    """Its times are as they were measured."""
    device = {"clocks": "sustained", "sustained_clock": 0.9, "gemm_table": "h100"}
    with pytest.raises(ConfigError, match=r"boost, as its gemm_table was measured"):
        load_cluster_config({"name": "hgx_h20", "device": device})
