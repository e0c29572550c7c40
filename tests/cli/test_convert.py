"""`simrank convert`: files of others, and algorithms."""

from pathlib import Path

import pytest

FILES = Path(__file__).parent.parent / "config" / "foreign"
PAIRS = FILES / "nccl" / "ncv4_topo.xml"


def test_nccls_topology_becomes_a_cluster_that_runs(cli, tmp_path):
    """Its numbers have sources, and `simrank bench` takes it."""
    path = tmp_path / "node.yaml"
    status, out, _ = cli("convert", PAIRS, "--device", "a100", "--to", path)
    assert (status, out) == (0, f"{path}\n")
    assert cli("convert", PAIRS, "--device", "a100")[1] == path.read_text()
    assert cli("check", path)[1].endswith("cluster ncv4_topo: 1 node(s) of 4 devices\n")
    status, out, _ = cli("bench", "all_reduce", "--cluster", path, "-b", "1M", "-e", "1M", "-n", 1)
    assert status == 0
    assert "on 4 ranks of ncv4_topo" in out


def test_nccls_graph_beside_it_makes_the_level_of_nccl(cli, tmp_path):
    """Without it there is no block `nccl`, and collectives cost what their schedules do."""
    path = tmp_path / "node.yaml"
    graph = FILES / "nccl" / "ncv4_graph.xml"
    cli("convert", PAIRS, "--device", "a100", "--to", path)
    assert cli("explain", "--cluster", path)[0] == 1
    cli("convert", PAIRS, "--device", "a100", "--graph", graph, "--to", path)
    status, out, _ = cli("explain", "--cluster", path)
    assert status == 0
    assert "over 24 GB/s of a GPU's port" in out


def test_a_topology_is_a_cluster_as_it_is(cli):
    """Where its device is known by its PCI numbers."""
    status, out, _ = cli(
        "bench",
        "all_gather",
        "--cluster",
        FILES / "nccl" / "topo_8A100_4CX6.xml",
        "-b",
        32,
        "-e",
        32,
    )
    assert status == 0
    assert "on 8 ranks of topo_8A100_4CX6" in out
    status, out, _ = cli("check", FILES / "nccl" / "topo_8A100_4CX6.xml")
    assert out.endswith("cluster topo_8A100_4CX6: 1 node(s) of 8 devices\n")


def test_an_algorithm_is_written_as_msccls_xml(cli, tmp_path):
    """Which `simrank prove` reads."""
    path = tmp_path / "ring.xml"
    assert cli("convert", "ring", "-n", 4, "--out", path)[0] == 0
    assert cli("prove", path)[0] == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((PAIRS,), "expected a PCI device that simrank has constants of"),
        ((PAIRS, "-n", 4), "--num-ranks: expected no such option with"),
        (("ring", "--device", "h100"), "--device: expected a topology file with this option"),
        ((PAIRS, "--device", "h1000"), "--device: expected one of a100"),
        (("no.xml",), "no.xml: expected a file that can be read"),
        ((PAIRS, "--device", "a100", "--to", "no/x.yaml"), "expected a file that can be written"),
    ],
)
def test_what_does_not_fit_is_refused(cli, args, message):
    """With status 2."""
    status, _, err = cli("convert", *args)
    assert status == 2
    assert message in err


def test_a_file_of_another_name_is_told_which_names_files_have(cli, tmp_path, monkeypatch):
    """It is no algorithm that simrank does not have; a file called as an algorithm is in no way."""
    monkeypatch.chdir(tmp_path)
    for name in ("topology.txt", "ring"):
        (tmp_path / name).touch()
    status, _, err = cli("convert", "topology.txt")
    assert status == 2
    assert err.startswith("topology.txt: expected a file that ends in .xml, .yaml or .yml, a ")
    assert cli("convert", "ring")[0] == 0


def test_an_astra_sim_network_becomes_a_cluster_and_a_cluster_one(cli, tmp_path):
    """What the NPUs are has to be said."""
    network = FILES / "astra_sim" / "HGX-H100-validated.yml"
    path, back = tmp_path / "node.yaml", tmp_path / "network.yml"
    assert cli("convert", network)[0] == 2
    assert cli("convert", network, "--device", "h100", "--to", path)[0] == 0
    assert "of 8 devices" in cli("check", path)[1]
    assert cli("convert", path, "--to", back)[0] == 0
    assert "bandwidth: [ 400.000000 ]" in back.read_text()
    assert "topology: [ Switch, Switch ]" in cli("convert", "h100_ib")[1]
    assert (
        "an ASTRA-sim network with this option" in cli("convert", "h100_ib", "--device", "h100")[2]
    )
