"""What `simrank check` recognises."""

import pytest

from simrank.config import check_file, configs_dir
from simrank.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hgx_h100", "cluster hgx_h100: 1 node(s) of 8 devices"),
        ("clusters/h100_ib.yaml", "cluster h100_ib: 2 node(s) of 8 devices"),
        ("bench/mi300x.yaml", "benchmark of all_reduce on mi300x"),
        ("measured/gb200x72_coreweave_allreduce.csv", "measured table with 5 rows"),
    ],
)
def test_a_file_is_recognised_by_its_keys(name, words):
    """Clusters, benchmarks and tables."""
    path = configs_dir() / name

    assert check_file(path if path.exists() else name) == words


def test_a_bad_table_is_found_through_its_benchmark(tmp_path):
    """What a file refers to is checked with it."""
    (tmp_path / "own.csv").write_text("op\n")
    path = tmp_path / "bench.yaml"
    path.write_text("cluster: hgx_h100\ncollectives: [all_reduce]\nmeasured: own.csv\n")
    with pytest.raises(ConfigError, match=r"own.csv:1: expected the columns"):
        check_file(path)


@pytest.mark.parametrize("text", ["{}\n", "foo: 1\n"])
def test_an_unknown_kind_of_file_is_refused(tmp_path, text):
    """With the keys that were found."""
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"expected a cluster .* or a benchmark"):
        check_file(path)


@pytest.mark.parametrize("path", ["none.yaml", "."])
def test_what_cannot_be_read_is_a_config_error(path):
    """A missing file and a folder."""
    with pytest.raises(ConfigError, match="expected a readable file"):
        check_file(path)
