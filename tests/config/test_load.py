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
