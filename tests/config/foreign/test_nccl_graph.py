"""NCCL's graph XML: what its search found, instead of what a cluster assumes."""

from pathlib import Path

import pytest
from hypothesis import given, settings

from simrank.config import load_cluster_config
from simrank.config.foreign.nccl_graph import (
    keys_of,
    nccl_block,
    parse_graph,
    read_graph,
    with_graph,
)
from simrank.errors import ConfigError
from tests.property.broken import broken, read_or_refused

PAIRS = Path(__file__).parent / "nccl" / "ncv4_graph.xml"
CHANNEL = '<channel><net dev="{0}"/><gpu dev="0"/><gpu dev="1"/><net dev="{0}"/></channel>'
GRAPH = (
    '<graph id="{id}" pattern="{pattern}" crossnic="0" nchannels="{n}" speedintra="{intra}" '
    'speedinter="{inter}" latencyinter="0" typeintra="NVL" typeinter="PIX" samechannels="0">'
    "\n{channels}</graph>"
)


def graph(pattern=4, count=12, intra=30, inter=15, nets=4):
    channels = "".join(CHANNEL.format(number % nets) for number in range(count))
    return GRAPH.format(id=0, pattern=pattern, n=count, intra=intra, inter=inter, channels=channels)


def file_of(*graphs):
    return f'<graphs version="1">\n{"".join(graphs)}</graphs>'.encode()


def test_a_real_file_has_its_channels_and_speeds():
    """Two rings of 12 GB/s over PCIe, each of them made twice."""
    found = keys_of(read_graph(PAIRS))
    assert {key: each.value for key, each in found.items()} == {
        "ring_bandwidth": "24 GB/s",
        "channels": 4,
        "wire": "pci",
    }
    assert found["ring_bandwidth"].source == f"2 channels x 12 GB/s, {PAIRS}:2"


def test_eight_h100_have_the_channels_that_simrank_assumes():
    """NCCL finds 12 rings and 8 trees in the switch there."""
    found = keys_of(parse_graph(file_of(graph(), graph(5, 8, 45)), "g.xml"))
    config = with_graph(load_cluster_config("hgx_h100"), found)
    builtin = load_cluster_config("hgx_h100").nccl
    assert config.nccl.channels == builtin.channels == 24
    assert config.nccl.nvls_bandwidth_bytes_per_s == builtin.nvls_bandwidth_bytes_per_s
    assert (config.nccl.nics, config.nccl.nic_bandwidth_bytes_per_s) == (4, 45 * 10**9)
    assert config.nccl.source["channels"] == "12 channels, each made twice, g.xml:2"
    assert config.nccl.source["p2p_channel_bandwidth"].startswith("assumed")


def test_a_cluster_without_a_block_of_nccl_takes_a_whole_block():
    """What the graph does not say is the built-in cluster's that has the device."""
    block = nccl_block("hgx_h100", "amd", keys_of(parse_graph(file_of(graph()), "g.xml")))
    data = {
        "name": "own",
        "source": "assumed",
        "device": {"like": "hgx_h100", "count": 2},
        "links": [{"between": ["gpu0", "gpu1"], "bandwidth": "1 GB/s", "latency": "1 us"}],
    }
    assert load_cluster_config(data | {"nccl": block}).nccl.architecture == "hopper"
    assert block["host"] == "amd"
    with pytest.raises(ConfigError, match="own: nccl: expected a cluster that says what NCCL"):
        with_graph(load_cluster_config(data), {})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'nchannels="12"',
            'nchannels="11"',
            "g.xml:2: graph[0].nchannels: expected 12, the",
        ),
        ('speedintra="30"', 'speedintra="0"', "speedintra: expected a speed above 0"),
        ('speedinter="15"', 'speedinter="fast"', "speedinter: expected a number from 0"),
        ('typeintra="NVL"', 'typeintra="NV"', "typeintra: expected one of LOC, NVL"),
        ('pattern="4"', 'pattern="3"', "g.xml:1: expected a <graph> of rings (pattern 4)"),
        ('<net dev="0"', "<net", "g.xml:3: graph[0].channel[0].net[0].dev: expected a text"),
        ("<graphs", "<system", "g.xml:1: expected <graphs>, got <system>"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old, new, message):
    """And what was expected."""
    text = file_of(graph()).decode()
    assert old in text
    with pytest.raises(ConfigError) as caught:
        parse_graph(text.replace(old, new).encode(), "g.xml")
    assert message in str(caught.value)


@settings(max_examples=200, deadline=None)
@given(broken(file_of(graph(count=2), graph(5, 1))))
def test_a_broken_file_is_read_or_refused(data):
    """Never anything else."""
    found = read_or_refused(parse_graph, data, "g.xml")
    if found is not None:
        with_graph(load_cluster_config("hgx_h100"), keys_of(found))
