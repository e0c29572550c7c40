"""The YAML of a cluster: what is accepted, and what each mistake says."""

import pytest

from simrank.config import builtin_clusters, configs_dir, load_bench_config, load_cluster_config
from simrank.config.cluster import (
    ClusterConfig,
    DeviceConfig,
    FabricConfig,
    LinkConfig,
    NcclConfig,
)
from simrank.errors import ConfigError

from .clusters import GOOD, complaint

README = (configs_dir() / "clusters" / "README.md").read_text()


def test_a_good_cluster_is_read(tmp_path):
    """Quantities become integers in base units."""
    path = tmp_path / "own.yaml"
    path.write_text(GOOD)
    config = load_cluster_config(path)

    assert config.links[0].bandwidth.forward == 450 * 10**9
    assert config.links[0].latency.backward == 10**6
    assert config.num_devices == 4


@pytest.mark.parametrize("name", builtin_clusters())
def test_every_built_in_cluster_is_valid_and_named_as_its_file(name):
    """The shipped files pass their own checks, sources included."""
    config = load_cluster_config(name)

    assert config.name == name
    assert config.description


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "450 GB/s",
            "450e9",
            "own.yaml:16: links[0].bandwidth: expected a rate with a unit, got 450e9\n"
            "  to fix: write the unit, for example `450 GB/s`",
        ),
        (
            "450 GB/s",
            "-1 GB/s",
            "own.yaml:16: links[0].bandwidth: expected a rate with a unit that is not negative, "
            "got -1 GB/s",
        ),
        (
            "450 GB/s",
            "0 GB/s",
            "own.yaml:16: links[0].bandwidth: expected a rate of at least 1 B/s, got 0 GB/s",
        ),
        (
            "450 GB/s",
            "1 us",
            "own.yaml:16: links[0].bandwidth: expected a rate with a unit, got 1 us",
        ),
        (
            "450 GB/s",
            "{forward: 1 GB/s, backward: 2}",
            "own.yaml:16: links[0].bandwidth.backward: expected a rate with a unit, got 2\n"
            "  to fix: write the unit, for example `2 GB/s`",
        ),
        (
            "bandwidth: 450",
            "bandwith: 450",
            "own.yaml:15: links[0].bandwidth: expected this key to be given, got nothing\n"
            "  to fix: add `bandwidth: ...`\n"
            "own.yaml:16: links[0].bandwith: expected one of source, between, bandwidth, latency, "
            "got the unknown key `bandwith`\n"
            "  to fix: write `bandwidth`",
        ),
        (
            "count: 4",
            "count: yes",
            "own.yaml:5: device.count: expected a whole number from 1 to 4096, got yes",
        ),
        (
            "count: 4",
            "count: 5000",
            "own.yaml:5: device.count: expected a whole number from 1 to 4096, got 5000",
        ),
        (
            "[each gpu, switch0]",
            "[nvswitch0..9, a b]",
            "own.yaml:15: links[0].between[0]: expected a vertex out of",
        ),
        (
            "name: toy",
            "name: no",
            "own.yaml:4: device.name: expected text, got no\n"
            "  to fix: write the word in quotes: YAML reads it as true or false",
        ),
        (
            "[switch0]",
            "[switch0, switch0]",
            "own.yaml:13: switches: expected each name once, got a second switch0",
        ),
        (
            "[each gpu, switch0]",
            "[each gpu, swich0]",
            "own.yaml:15: links[0].between[1]: expected a vertex out of gpu0, gpu1, gpu2, gpu3, "
            "switch0, got swich0\n  to fix: write `switch0`",
        ),
        (
            "[each gpu, switch0]",
            "[gpu0..2, switch0]",
            "own.yaml:14: links: expected links that connect all devices, "
            "got no route from gpu0 to gpu3",
        ),
        (
            "[each gpu, switch0]",
            "[gpu0, gpu0]",
            "own.yaml:15: links[0].between: expected two different vertices, got gpu0 twice",
        ),
        (
            "[each gpu, switch0]",
            "[same gpu, switch0]",
            "own.yaml:15: links[0].between: expected as many vertices on both sides of `same`, "
            "got 4 and 1",
        ),
        (
            "name: own4",
            "name: own4\nnodes: 2",
            "own.yaml:2: nodes: expected 1, because no fabric joins nodes of own4, got 2",
        ),
        (
            "source: assumed\n",
            "",
            "own.yaml:2: device.source: expected a source for host_link, kernel_floor, "
            "launch_overhead, memory, memory_bandwidth, num_sms, peak_flops, got nothing\n"
            "  to fix: write `source: assumed` where there is no better one",
        ),
        (
            "{float32: 1 TFLOPS}",
            "{floaty: 1 TFLOPS}",
            "own.yaml:9: device.peak_flops.floaty: expected one of",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path, old, new, message):
    """File, line, key path, what was expected, what was found."""
    assert complaint(tmp_path, old, new).startswith(message)


def test_all_problems_of_a_file_come_in_file_order(tmp_path):
    """One run names them all."""
    path = tmp_path / "own.yaml"
    path.write_text(GOOD.replace("450 GB/s", "450").replace("count: 4", "count: 0"))
    with pytest.raises(ConfigError) as caught:
        load_cluster_config(path)

    assert [problem.line for problem in caught.value.problems] == [5, 16]


def test_a_source_may_name_single_numbers(tmp_path):
    """A mapping from key to source, with others for the rest."""
    path = tmp_path / "own.yaml"
    path.write_text(GOOD.replace("    latency: 1 us", "    latency: 1 us\n    source: {x: y}"))
    with pytest.raises(ConfigError, match=r"links\[0\].source.x: expected a key of this block"):
        load_cluster_config(path)


def test_a_cluster_inside_a_benchmark_names_its_whole_key_path(tmp_path):
    """An own cluster may stand in place of a name."""
    path = tmp_path / "bench.yaml"
    indented = GOOD.replace("gpu, switch0", "gpu, switch").replace("\n", "\n  ")
    path.write_text(f"collectives: [all_reduce]\ncluster:\n  {indented}\n")
    with pytest.raises(ConfigError) as caught:
        load_bench_config(path)
    (problem,) = caught.value.problems

    assert (problem.line, problem.key_path) == (17, "cluster.links[0].between[1]")


def test_a_cluster_cannot_be_larger_than_a_laptop():
    """131,072 devices are fine; a hundred times as many are a typing error."""
    assert load_cluster_config("h100_ib", nodes=16_384).num_devices == 131_072
    with pytest.raises(ConfigError, match="at most 4194304 devices in all"):
        load_cluster_config("h100_ib", nodes=10**6)


@pytest.mark.parametrize(
    "model", [ClusterConfig, DeviceConfig, FabricConfig, LinkConfig, NcclConfig]
)
def test_every_key_is_explained(model):
    """A new key does not stay a secret."""
    for key in set(model.keys()) - {"description"}:
        assert key in README


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            "protocols: [smple]",
            r"nccl.protocols\[0\]: expected one of LL, LL128, Simple, got smple",
        ),
        ("protocols: []", r"nccl.protocols: expected a list such as \[Simple\]"),
        ("algorithms: [rings]", r"nccl.algorithms\[0\]: expected .*ring"),
        ("nic_latency: 20", "nccl.nic_latency: expected a time with a unit, got 20"),
    ],
)
def test_what_a_network_tells_nccl_is_checked(tmp_path, keys, message):
    """With line and key; one word is a list of one."""
    block = "\nnccl: {architecture: hopper, ring_bandwidth: 1 GB/s, channels: 1, source: assumed,\n"
    block += "  p2p_channel_bandwidth: 1 GB/s, %s}\n"
    path = tmp_path / "own.yaml"
    path.write_text(GOOD + block % keys)
    with pytest.raises(ConfigError, match=message):
        load_cluster_config(path)
    path.write_text(GOOD + block % "algorithms: ring, nic_latency: 20 us")
    found = load_cluster_config(path).nccl
    assert (found.algorithms, found.protocols, found.nic_latency_ps) == (
        ("ring",),
        None,
        20_000_000,
    )


# ---- own topologies of built-in devices ----

LINKS = [{"between": ["each gpu", "each gpu"], "bandwidth": "50 GB/s", "latency": "1 us"}]
OWN = {"name": "own4", "links": LINKS}


def own(**device):
    """Return a mesh of devices; its links are sourced by the whole cluster's source."""
    return load_cluster_config(OWN | {"source": "assumed", "device": device})


def test_what_is_not_given_is_the_built_in_devices():
    """The collective library's costs included."""
    config = own(like="hgx_h100", count=4)
    builtin = load_cluster_config("hgx_h100")

    assert config.device.count == 4
    assert config.device.peak_flops == builtin.device.peak_flops
    assert config.collectives == builtin.collectives


def test_sources_stay_with_their_numbers():
    """An own number does not inherit the source of the one it replaces."""
    config = own(like="hgx_h100", count=4, memory="40 GB", source={"memory": "mine"})
    builtin = load_cluster_config("hgx_h100").device.source

    assert config.device.memory_bytes == 40 * 10**9
    assert config.device.source["memory"] == "mine"
    assert config.device.source["kernel_floor"] == builtin["kernel_floor"]
    assert config.device.source["num_sms"] == builtin["others"]


def test_an_own_number_needs_an_own_source():
    """Without one the cluster is refused, as everywhere."""
    links = [LINKS[0] | {"source": "assumed"}]
    device = {"like": "hgx_h100", "count": 4, "memory": "40 GB"}
    with pytest.raises(ConfigError, match=r"device.source: expected a source for memory, got"):
        load_cluster_config({"name": "own4", "links": links, "device": device})


@pytest.mark.parametrize("word", ["hgx_h10", 4, None])
def test_an_unknown_device_lists_the_built_in_ones(word):
    """As an unknown cluster does."""
    with pytest.raises(ConfigError, match=r"cluster: device.like: expected one of a100_efa"):
        own(like=word, count=4)
