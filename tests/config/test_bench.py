"""The YAML of a benchmark."""

import pytest

from simrank.config import bench_config_from_mapping, load_bench_config
from simrank.config.locate import builtin_names, locate
from simrank.config.measured import load_machine
from simrank.errors import ConfigError

LEAST = {"cluster": "hgx_h100", "collectives": ["all_reduce"]}


def complaint(**changes):
    """Return the message for the least benchmark with other keys."""
    with pytest.raises(ConfigError) as caught:
        bench_config_from_mapping(LEAST | changes)
    return str(caught.value)


def test_only_cluster_and_collectives_are_required():
    """Every other key has the default that nccl-tests users expect."""
    config = bench_config_from_mapping(LEAST)

    assert [cluster.name for cluster in config.clusters] == ["hgx_h100"]
    assert config.num_ranks is None
    assert config.algorithms == {"auto": {}}
    assert (config.dtypes, config.redops, config.root) == (("float32",), ("sum",), 0)
    assert (config.sizes_bytes[0], config.sizes_bytes[-1]) == (8, 128 * 2**20)
    assert (config.iterations.warmup, config.iterations.timed) == (1, 20)
    assert config.in_place == (False, True)
    assert (config.measured, config.check, config.seed) == ((), True, 0)


@pytest.mark.parametrize("name", builtin_names("bench"))
def test_every_built_in_benchmark_is_valid(name):
    """The shipped files pass their own checks, and there is one per cluster."""
    config = load_bench_config(name)

    assert config.clusters[0].name == name
    assert config.measured


def test_there_is_a_benchmark_for_each_cluster_that_was_measured():
    """By nccl-tests: beside the published table."""
    machines = [load_machine(locate("measured", name)) for name in builtin_names("measured")]
    clusters = {each.cluster for each in machines if each.mode == "back_to_back"}
    assert builtin_names("bench") == sorted(clusters)


@pytest.mark.parametrize(
    ("sizes", "sizes_bytes"),
    [
        ({"from": "8 B", "to": "100 B", "factor": 2}, (8, 16, 32, 64)),
        ({"from": "1 KiB", "to": "3 KiB", "step": "1 KiB"}, (1024, 2048, 3072)),
        (["8 B", "1 MB"], (8, 10**6)),
        ("1 MiB", (2**20,)),
    ],
)
def test_sizes_are_a_sweep_or_a_list(sizes, sizes_bytes):
    """By factor, by step, listed, or one."""
    assert bench_config_from_mapping(LEAST | {"sizes": sizes}).sizes_bytes == sizes_bytes


@pytest.mark.parametrize(
    ("in_place", "expected"), [("both", (False, True)), (True, (True,)), (False, (False,))]
)
def test_in_place_is_both_or_one(in_place, expected):
    """YAML's on and off arrive as booleans."""
    assert bench_config_from_mapping(LEAST | {"in_place": in_place}).in_place == expected


def test_algorithms_may_have_options():
    """A list of names, or a mapping from name to options."""
    listed = bench_config_from_mapping(LEAST | {"algorithms": ["ring", "auto"]})
    mapped = bench_config_from_mapping(LEAST | {"algorithms": {"ring": {"channels": 2}, "a": None}})

    assert listed.algorithms == {"ring": {}, "auto": {}}
    assert mapped.algorithms == {"ring": {"channels": 2}, "a": {}}


def test_several_clusters_may_be_given():
    """By name, or with their number of nodes."""
    config = bench_config_from_mapping(
        {"clusters": ["hgx_a100", {"name": "h100_ib", "nodes": 4}], "collectives": "all_reduce"}
    )

    assert [cluster.num_devices for cluster in config.clusters] == [8, 32]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cluster": "hgx_h10"}, "command line: cluster: expected a file or one of hgx_h100"),
        ({"cluster": {"name": "hgx_h100", "nodes": 2}}, "command line: cluster.nodes: expected 1"),
        ({"clusters": ["hgx_h100"]}, "command line: clusters: expected either cluster or clusters"),
        ({"collectives": ["all_reduc"]}, "command line: collectives[0]: expected one of"),
        ({"collectives": []}, "command line: collectives: expected a list such as [all_reduce]"),
        ({"dtypes": "floot"}, "command line: dtypes: expected one of float32"),
        ({"redops": ["mul"]}, "command line: redops[0]: expected one of sum, prod, min, max, avg"),
        ({"num_ranks": 9}, "command line: num_ranks: expected at most 8, the devices of hgx_h100"),
        ({"num_ranks": 0}, "command line: num_ranks: expected a whole number from 1, got 0"),
        ({"num_ranks": [2, True]}, "command line: num_ranks[1]: expected a whole number from 1"),
        ({"root": 8}, "command line: root: expected a rank from 0 to 7, got 8"),
        ({"sizes": [8]}, "command line: sizes[0]: expected a size with a unit, got 8"),
        ({"sizes": {"from": "8 B", "to": "4 B"}}, "command line: sizes.to: expected at least 8 B"),
        ({"sizes": {"fro": "8 B"}}, "command line: sizes.fro: expected one of from, to, factor"),
        ({"sizes": {"factor": 1}}, "command line: sizes.factor: expected a whole number from 2"),
        ({"sizes": {"from": "0 B"}}, "command line: sizes.from: expected a size above 0 B"),
        ({"iterations": {"timed": 0}}, "command line: iterations.timed: expected a whole number"),
        ({"iterations": 20}, "command line: iterations: expected a mapping, got 20"),
        ({"in_place": "maybe"}, "command line: in_place: expected both, true or false, got maybe"),
        ({"algorithms": []}, "command line: algorithms: expected a list of algorithms"),
        ({"algorithms": {"ring": 2}}, "command line: algorithms.ring: expected a mapping"),
        ({"measured": "h100"}, "command line: measured: expected a file or one of a100"),
        ({"measured": "./none.csv"}, "command line: measured: expected a readable file"),
        ({"check": "si"}, "command line: check: expected true or false, got si"),
        ({"seed": -1}, "command line: seed: expected a whole number from 0, got -1"),
        ({"sizs": 1}, "command line: sizs: expected one of cluster, clusters"),
    ],
)
def test_a_mistake_is_named_with_its_key(changes, message):
    """The same messages as from a file, without a line."""
    assert complaint(**changes).startswith(message)


def test_all_problems_of_a_file_come_in_file_order(tmp_path):
    """Those of the cluster's name, of the sweep and of single keys alike."""
    path = tmp_path / "bench.yaml"
    path.write_text("seed: x\ncluster: nope\nsizes: {from: 8}\ncollectives: [x]\n")
    with pytest.raises(ConfigError) as caught:
        load_bench_config(path)

    assert [problem.line for problem in caught.value.problems] == [1, 2, 3, 4]
