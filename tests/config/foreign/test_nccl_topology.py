"""NCCL's topology XML as a cluster: files of real machines, what they become, and broken ones."""

from pathlib import Path

import pytest
from hypothesis import given, settings

from simrank.config import builtin_clusters, load_cluster_config
from simrank.config.foreign.nccl_topology import (
    _BY_PCI_ID,
    SHORT,
    device_named,
    device_of_pci,
    host_of,
    keys_of,
    name_of,
    nccl_block,
    parse_graph,
    parse_topology,
    read_graph,
    read_topology,
    with_graph,
)
from simrank.errors import ConfigError
from simrank.hardware import load_cluster
from tests.property.broken import broken, read_or_refused

FILES = Path(__file__).parent / "nccl"
A100 = FILES / "topo_8A100_4CX6.xml"
PAIRS = FILES / "ncv4_topo.xml"
# Two H100 on one PCIe switch with a card, as NCCL writes it, beside NVSwitches.
NODE = """\
<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="207">
    <pci busid="0000:16:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:18:00.0" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe">
        <gpu dev="0" sm="90" rank="0" gdr="1">
          <nvlink target="0000:07:00.0" count="10" tclass="0x068000"/>
          <nvlink target="0000:06:00.0" count="8" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:19:00.0" vendor="0x10de" device="0x2330" link_speed="32 GT/s" link_width="8">
        <gpu dev="1" sm="90" rank="1" gdr="1">
          <nvlink target="0000:07:00.0" count="18" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:1a:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" speed="400000" port="1" latency="0.0" guid="0x1" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
</system>
"""


def node(*changes, device=None):
    text = NODE
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return parse_topology(text.encode(), "node.xml", device)


def links(cluster):
    return {tuple(link["between"]): link["bandwidth"] for link in cluster["links"]}


def complaint(*changes, **options):
    with pytest.raises(ConfigError) as caught:
        node(*changes, **options)
    return str(caught.value)


def test_a_node_of_eight_a100_is_what_simrank_knows_of_it():
    """NVLinks to switches are 12 x 20 GB/s; the device follows from its PCI numbers."""
    config = load_cluster_config(A100)
    builtin = load_cluster_config("hgx_a100")
    assert config.device.name == builtin.device.name
    assert config.device.count == 8
    assert config.device.host_link_bandwidth_bytes_per_s == 24 * 10**9
    found = links(read_topology(A100))
    assert found["each gpu", "nvswitch"] == "240 GB/s"
    assert found["cpu0", "cpu1"] == "10 GB/s"  # modelid 106 is below Sapphire Rapids' 143.
    assert list(config.nics) == [f"nic{number}" for number in range(5)]


def test_devices_talk_over_nvlink_and_reach_the_cards_of_their_own_switch():
    """gpu1 and nic1 share a PCIe switch, gpu4 and nic3 are on the other socket."""
    cluster = load_cluster({"name": str(A100), "nodes": 2})
    names = lambda a, b: [  # noqa: E731 - read once, below
        cluster.link_name(link)
        for link in cluster.paths([a], [b]).links[0]
        if link < cluster.num_links
    ]
    assert names(0, 5) == ["node 0: gpu0 -> nvswitch", "node 0: nvswitch -> gpu5"]
    assert [name.split(": ")[1] for name in names(1, 9)] == [
        "gpu1 -> pcie1",
        "pcie1 -> nic1",
        "nic1 -> net",
        "net -> nic1",
        "nic1 -> pcie1",
        "pcie1 -> gpu1",
    ]


def test_pairs_joined_by_nvlink_have_direct_links():
    """The file says nothing of PCIe, so NCCL's assumption is called one; no switch multicasts."""
    found = read_topology(PAIRS, "a100")
    assert links(found)["gpu0", "gpu1"] == "240 GB/s"
    assert ("gpu1", "gpu0") not in links(found)
    assert links(found)["gpu2", "cpu2"] == "12 GB/s"
    assert links(found)["nic0", "cpu0"] == "12.5 GB/s"
    (source,) = {
        link["source"]["bandwidth"] for link in found["links"] if link["between"][0] == "gpu2"
        and link["between"][1] == "cpu2"
    }  # fmt: skip
    assert source.startswith("assumed, ")
    assert "host_link" not in found["device"]
    assert found["device"]["multicast"] is False
    load_cluster_config(found)


def test_what_nccl_assumes_of_wires_is_assumed_here():
    """Lanes, generations, sockets."""
    second = '<cpu numaid="1" vendor="AuthenticAMD"><pci busid="9" class="0x03"/></cpu></system>'
    found = links(node(("</system>", second)))
    assert (
        found["gpu0", "nvswitch"]
        if ("gpu0", "nvswitch") in found
        else found["each gpu", "nvswitch"]
    )
    assert found["gpu1", "pcie0"] == "24 GB/s"
    assert found["gpu0", "pcie0"] == "48 GB/s"
    assert found["cpu0", "cpu1"] == "16 GB/s"
    old = links(node(("32.0 GT/s PCIe", "8 GT/s")))
    assert old["gpu0", "pcie0"] == "12 GB/s"


def test_grace_is_joined_by_its_c2c():
    """Megabytes per second of each of several."""
    found = links(node(("</gpu>", '<c2c bw="44712" count="10"/></gpu>'), device="gh200"))
    assert found["gpu0", "cpu0"] == "447.12 GB/s"


def test_unequal_devices_have_links_of_their_own():
    """One with fewer NVLinks than the others."""
    found = links(node(('count="18"', 'count="16"')))
    assert (found["gpu0", "nvswitch"], found["gpu1", "nvswitch"]) == ("370.8 GB/s", "329.6 GB/s")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'device="0x2330" link',
            'device="0x2331" link',
            "node.xml:4: cpu[0].pci[0].pci[0].device",
        ),
        ('dev="1"', 'dev="0"', "gpu[0].dev: expected a number of its own, got 0, as in line 5"),
        ('sm="90"', 'sm="x"', "gpu[0].sm: expected a whole number from 1 to 999, got x"),
        ('count="10"', 'count="ten"', "node.xml:6: cpu[0].pci[0].pci[0].gpu[0].nvlink[0].count: "),
        ('tclass="0x068000"', 'tclass="0x068001"', "tclass: expected 0x068000 (NVSwitch), or a t"),
        ('target="0000:07:00.0"', 'target="0000:18:00.0"', "target: expected another device"),
        ('speed="400000"', 'speed="-1"', "net[0].speed: expected a whole number from 1 to"),
        ("<gpu", "<cpu", "node.xml:5: cpu[0].pci[0].pci[0]: expected in <pci> <pci> or <gpu>"),
        ("</gpu>", "<xgmi/></gpu>", "xgmi[0]: expected NVIDIA's devices"),
        ("</system>", '<cpu host_hash="2"/></system>', "expected the topology of one host"),
        (' busid="0000:18:00.0"', "", "busid: expected a text, got nothing"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old, new, message):
    """And what was expected."""
    assert message in complaint((old, new))


def test_a_pair_must_agree_on_its_links():
    """They stand in the file at both ends."""
    text = PAIRS.read_text()
    with pytest.raises(ConfigError, match="count: expected 12, as in line 5, got 4"):
        parse_topology(text.replace('"12"', '"4"').replace('"4"', '"12"', 1).encode(), "f", "a100")


def test_an_unknown_device_is_asked_for_and_not_guessed():
    """sm="80" alone is four different devices."""
    with pytest.raises(ConfigError) as caught:
        read_topology(PAIRS)
    assert "0x10de 0x20b5 with sm 80" in str(caught.value)
    assert f"simrank convert {PAIRS} --device h100" in str(caught.value)
    nothing = (' vendor="0x10de" device="0x2330"', "")
    assert "got nothing with sm 90" in complaint(nothing)
    assert node(nothing, device="h200")["device"]["like"] == "hgx_h200"


def test_the_processors_makers_are_nccls_hosts(tmp_path):
    """Where all are of one that NCCL's tables have."""
    assert (host_of(A100), host_of(PAIRS)) == ("intel", "amd")
    path = tmp_path / "t.xml"
    path.write_text('<system><cpu vendor="GenuineIntel"/><cpu vendor="AuthenticAMD"/></system>')
    assert host_of(path) is None


def test_a_file_without_devices_says_which_one_to_take():
    """As those that clouds give to NCCL."""
    with pytest.raises(ConfigError, match=r"(?s)at least one <gpu>.*NCCL_TOPO_DUMP_FILE"):
        parse_topology(b'<system version="1"><cpu numaid="0"/></system>', "f.xml")


@settings(max_examples=200, deadline=None)
@given(broken(NODE.encode()))
def test_a_broken_file_is_read_or_refused(data):
    """Never anything else, and a cluster that was read is one."""
    found = read_or_refused(parse_topology, data, "f.xml")
    if found is not None:
        read_or_refused(load_cluster_config, found)


# ---- NCCL's graph XML: what its search found, instead of what a cluster assumes ----

GRAPH_PAIRS = Path(__file__).parent / "nccl" / "ncv4_graph.xml"
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
    found = keys_of(read_graph(GRAPH_PAIRS))
    assert {key: each.value for key, each in found.items()} == {
        "ring_bandwidth": "24 GB/s",
        "channels": 4,
        "wire": "pci",
    }
    assert found["ring_bandwidth"].source == f"2 channels x 12 GB/s, {GRAPH_PAIRS}:2"


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
def test_what_is_wrong_is_said_with_its_line_in_a_graph(old, new, message):
    """And what was expected."""
    text = file_of(graph()).decode()
    assert old in text
    with pytest.raises(ConfigError) as caught:
        parse_graph(text.replace(old, new).encode(), "g.xml")
    assert message in str(caught.value)


@settings(max_examples=200, deadline=None)
@given(broken(file_of(graph(count=2), graph(5, 1))))
def test_a_broken_file_is_read_or_refused_as_a_graph(data):
    """Never anything else."""
    found = read_or_refused(parse_graph, data, "g.xml")
    if found is not None:
        with_graph(load_cluster_config("hgx_h100"), keys_of(found))


# ---- which built-in cluster has a device ----


def test_every_name_is_a_built_in_clusters():
    """Those behind short names and PCI numbers."""
    assert {*SHORT.values(), *_BY_PCI_ID.values()} <= set(builtin_clusters())
    assert device_named("h100") == "hgx_h100"
    assert device_named("mi300x") == "mi300x"
    assert device_of_pci("0x10DE", "0x2330") == "hgx_h100"
    assert device_of_pci("0x10de", "0x20b5") is None


def test_an_unknown_name_is_refused_with_the_nearest():
    """The short ones are listed first."""
    with pytest.raises(ConfigError, match=r"--device: expected one of a100, h100,(.|\n)*`h100`"):
        device_named("h10")


@pytest.mark.parametrize("file", ["1 node.xml", "..xml", "topo-1.xml", "a/b.xml", "\xe9.xml"])
def test_a_files_name_becomes_a_clusters(file):
    """Whatever is in it."""
    name = name_of(file)
    data = {
        "name": name,
        "source": "assumed",
        "device": {"like": "hgx_h100", "count": 1},
        "links": [],
    }
    assert load_cluster_config(data).name == name
