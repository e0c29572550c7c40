"""ASTRA-sim's network YAML as a cluster."""

from pathlib import Path

import pytest
from hypothesis import given, settings

from simrank import units
from simrank.config import load_cluster_config
from simrank.config.foreign.astra_sim import is_network, network_cluster
from simrank.config.yaml_source import parse_yaml, read_yaml
from simrank.errors import ConfigError
from simrank.hardware import load_cluster
from tests.property.broken import broken, read_or_refused

FILES = Path(__file__).parent / "astra_sim"
PRODUCT = FILES / "Ring_FullyConnected_Switch.yml"
TEXT = "topology: [Ring, Switch]\nnpus_count: [4, 2]\nbandwidth: [50.0, 25]\nlatency: [500, 1.5]\n"


def cluster_of(text, device="h100"):
    return network_cluster(parse_yaml(text, "net.yml"), device)


def test_a_product_of_three_dimensions_has_their_links():
    """Two by eight NPUs are a node; the last switch joins four nodes, position by position."""
    cluster = load_cluster(network_cluster(read_yaml(PRODUCT), "h100"))
    assert (cluster.num_nodes, cluster.devices_per_node) == (4, 16)
    steps = {
        1: ("ring", 200, 50),  # The neighbour in the ring of two.
        2: ("mesh", 100, 500),
        14: ("mesh", 100, 500),
        16: ("switch", 50, 2 * 2000),  # The same position of the next node: up and down.
        48: ("switch", 50, 2 * 2000),
    }
    for npu, (_, gbps, latency_ns) in steps.items():
        paths = cluster.paths([0], [npu])
        used = paths.links[paths.links != cluster.num_links]
        rates = cluster.link_bandwidth_bytes_per_s[used]
        assert rates.min() == rates.max() == gbps * 2**30, npu
        assert paths.latency_ps[0] == latency_ns * units.PS_PER_NS


def test_one_switch_is_one_node():
    """The H100 node that ASTRA-sim's authors fitted."""
    found = network_cluster(read_yaml(FILES / "HGX-H100-validated.yml"), "h100")
    assert "fabric" not in found
    assert found["links"][7]["between"] == ["gpu7", "dim0switch0"]
    assert load_cluster_config(found).links[0].latency.forward == 936_250


def test_a_ring_goes_round():
    """Of two it is one link, of one none."""
    ends = [link["between"] for link in cluster_of(TEXT)["links"]]
    assert ends == [["gpu0", "gpu1"], ["gpu1", "gpu2"], ["gpu2", "gpu3"], ["gpu3", "gpu0"]]
    assert len(cluster_of(TEXT.replace("[4,", "[2,"))["links"]) == 1
    assert cluster_of(TEXT.replace("[4,", "[1,"))["links"] == []


def test_a_network_is_known_by_its_keys():
    """A cluster has others."""
    assert is_network(parse_yaml(TEXT, "f").data)
    assert not is_network({"device": 1})
    assert not is_network([])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Ring", "Torus", "net.yml:1: topology[0]: expected one of Ring, Switch, FullyConnected"),
        ("[4, 2]", "[4]", "net.yml:2: npus_count: expected 2 entries, as topology has, got 1"),
        ("[4, 2]", "[4, 0]", "net.yml:2: npus_count[1]: expected a number of NPUs from 1, got 0"),
        ("[4, 2]", "[5000, 2]", "net.yml:2: npus_count: expected at most 4096 NPUs besides"),
        ("50.0", "-1", "net.yml:3: bandwidth[0]: expected a rate in GB/s above 0, got -1"),
        ("50.0", ".nan", "net.yml:3: bandwidth[0]: expected a rate in GB/s above 0, got .nan"),
        ("1.5", "fast", "net.yml:4: latency[1]: expected a latency in ns from 0, got fast"),
        ("latency", "latencies", "expected one of topology, npus_count, bandwidth, latency"),
        ("latency: [500, 1.5]", "", "net.yml:1: latency: expected a list with an entry per dime"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old, new, message):
    """And what was expected."""
    assert old in TEXT
    with pytest.raises(ConfigError) as caught:
        cluster_of(TEXT.replace(old, new))
    assert message in str(caught.value)


def test_what_an_npu_is_somebody_has_to_say():
    """The format has no device."""
    with pytest.raises(ConfigError, match=r"(?s)--device: .*simrank convert net.yml --device"):
        cluster_of(TEXT, None)


def _read(data):
    source = parse_yaml(data.decode(), "net.yml")
    if is_network(source.data):
        load_cluster_config(network_cluster(source, "h100"))


@settings(max_examples=150, deadline=None)
@given(broken(TEXT.encode()))
def test_a_broken_file_is_read_or_refused(data):
    """Never anything else; bytes that are no text are refused where files are read."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return
    read_or_refused(_read, data)
