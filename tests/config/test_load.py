"""From a name, a path or a mapping to a configuration: where files are looked for."""

import pytest

from simrank.config import load_bench_config
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
