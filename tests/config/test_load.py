"""From a name, a path or a mapping to a configuration: where files are looked for."""

import json

import pytest

from simrank.config import load_bench_config, load_cluster_config
from simrank.errors import ConfigError


def test_files_are_found_beside_the_benchmark(tmp_path):
    """A relative path starts at the YAML file that names it, not at the current folder."""
    (tmp_path / "own.csv").write_text("")
    path = tmp_path / "bench.yaml"
    path.write_text("cluster: hgx_h100\ncollectives: [all_reduce]\nmeasured: own.csv\n")

    assert load_bench_config(path).measured == (tmp_path / "own.csv",)


def test_a_cluster_may_be_a_file_beside_the_benchmark(tmp_path):
    """A path works wherever a name does, and complaints name the cluster's own file."""
    (tmp_path / "own.yaml").write_text("name: x\n")
    path = tmp_path / "bench.yaml"
    path.write_text("cluster: own.yaml\ncollectives: [all_reduce]\n")
    with pytest.raises(ConfigError) as caught:
        load_bench_config(path)

    assert {problem.file for problem in caught.value.problems} == {str(tmp_path / "own.yaml")}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("nope", "own.yaml:1: device.gemm_table: expected a file or one of b200, h100, mi355x"),
        ("nope.csv", "own.yaml:1: device.gemm_table: expected a readable file"),
        ("n" * 5000, "own.yaml:1: device.gemm_table: expected a file or one of"),
        ("bad.csv", "bad.csv:2: time_us: expected a number above 0, got slow"),
        ("empty.csv", "empty.csv:1: expected the columns dtype, b, m, n, k, time_us, got an empty"),
    ],
)
def test_a_table_of_products_is_looked_at_when_the_cluster_is(tmp_path, word, message):
    """Not when the first product is timed."""
    (tmp_path / "bad.csv").write_text("dtype,b,m,n,k,time_us\nbf16,1,2,3,4,slow\n")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ConfigError) as caught:
        load_cluster_config(_with_table(tmp_path, word))
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_a_table_of_products_lies_beside_the_cluster(tmp_path):
    """Whatever the current folder is."""
    (tmp_path / "own.csv").write_text("dtype,b,m,n,k,time_us\nbf16,1,2,3,4,5.5\n")
    config = load_cluster_config(_with_table(tmp_path, "own.csv"))
    assert config.device.gemm_table == str(tmp_path / "own.csv")


def _with_table(folder, word):
    path = folder / "own.yaml"
    path.write_text(
        f"device: {{like: hgx_h100, count: 2, gemm_table: {word}}}\nname: own\nsource: assumed\n"
        "links: [{between: [gpu0, gpu1], bandwidth: 1 GB/s, latency: 1 us}]\n"
    )
    return path


@pytest.mark.parametrize(
    "word", ["n" * 5000, "n" * 5000 + ".yaml", "./", "no\x1b[31m.yaml", "missing.yaml", "a\0b.yaml"]
)
def test_a_cluster_that_is_no_file_is_named_where_it_is_asked_for(tmp_path, word):
    """File and line of the word, on one line of sane length."""
    path = tmp_path / "bench.yaml"
    path.write_text(f"collectives: [all_reduce]\ncluster: {json.dumps(word)}\n")
    with pytest.raises(ConfigError) as caught:
        load_bench_config(path)
    assert str(caught.value).startswith(f"{path}:2: cluster: expected ")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1500


# ---- changed keys beside the name of a built-in cluster, in a mapping or a file ----


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


def test_a_wrong_value_beside_a_cluster_s_name_is_reported_at_its_line(tmp_path):
    """In the file that changes it, not in the built-in one."""
    path = tmp_path / "own.yaml"
    path.write_text("name: h100_ib\ndevice:\n  memory: 102 GB\n  memory_bandwidth: nope TB/s\n")
    with pytest.raises(ConfigError) as caught:
        load_cluster_config(path)
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"{path}:4: device.memory_bandwidth: expected a rate")
