"""Published tables as CSV."""

import pytest

from simrank.config import configs_dir
from simrank.config.load import load_cluster_config
from simrank.config.locate import builtin_names, locate
from simrank.config.measured import COLUMNS, load_machine, load_measured
from simrank.errors import ConfigError

ROW = "8 GPUs,all_reduce,8,1024,float,10.5,0.1,0.2,somewhere"


def write(tmp_path, *rows):
    """Write a table and return its path."""
    path = tmp_path / "own.csv"
    path.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
    return path


def test_a_row_is_read_with_torchs_names(tmp_path):
    """nccl-tests' spellings of operation and dtype become simrank's."""
    (row,) = load_measured(write(tmp_path, ROW.replace("all_reduce", "alltoall")))

    assert (row.collective, row.dtype, row.num_ranks) == ("all_to_all", "float32", 8)
    assert (row.size_bytes, row.time_us, row.busbw_GBps) == (1024, 10.5, 0.2)


@pytest.mark.parametrize("name", builtin_names("measured"))
def test_every_shipped_table_is_valid_and_consistent(name):
    """The algorithm bandwidth is size over time, and every row says where it comes from."""
    for row in load_measured(locate("measured", name)):
        assert row.source
        assert row.algbw_GBps == pytest.approx(row.size_bytes / row.time_us / 1e3, rel=2e-3)


def test_every_shipped_table_is_explained():
    """The README beside the tables names each of them."""
    readme = (configs_dir() / "measured" / "README.md").read_text()
    for name in builtin_names("measured"):
        assert name.rsplit("_", 1)[0] in readme


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW.replace("10.5", "x"), ":2: time_us: expected a number above 0, got x"),
        (ROW.replace("10.5", "nan"), ":2: time_us: expected a number above 0, got nan"),
        (ROW.replace("1024", "-1"), ":2: bytes: expected a whole number above 0, got -1"),
        (ROW.replace("float", "floaty"), ":2: dtype: expected one of float32"),
        (ROW.replace("all_reduce", "sum"), ":2: op: expected one of all_reduce"),
        (ROW + ",more", ":2: expected 9 cells, got 10"),
        ('"' + ROW, ":2: expected valid CSV, got unexpected end of data"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path, row, message):
    """The column and what stands there."""
    with pytest.raises(ConfigError) as caught:
        load_measured(write(tmp_path, row))

    assert message in str(caught.value)


def test_all_bad_rows_are_named(tmp_path):
    """Good rows between them do not hide the next."""
    bad = ROW.replace("10.5", "x")
    with pytest.raises(ConfigError) as caught:
        load_measured(write(tmp_path, bad, ROW, bad))

    assert [problem.line for problem in caught.value.problems] == [2, 4]


@pytest.mark.parametrize(("text", "got"), [("", "an empty file"), ("op,bytes\n", "no system")])
def test_a_table_without_its_columns_is_refused(tmp_path, text, got):
    """The header names what is missing."""
    path = tmp_path / "own.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=got):
        load_measured(path)


# ---- on what a table was measured, said beside it ----


@pytest.mark.parametrize("name", builtin_names("measured"))
def test_every_shipped_table_says_where_it_was_measured(name):
    """A built-in cluster with enough devices, and the ranks of its rows."""
    path = locate("measured", name)
    machine = load_machine(path)
    cluster = load_cluster_config(machine.cluster, machine.nodes if machine.nodes > 1 else None)
    ranks = {row.num_ranks for row in load_measured(path)}
    assert max(ranks) <= cluster.num_devices
    assert machine.num_ranks is None or ranks == {machine.num_ranks}


def test_a_table_may_stand_alone(tmp_path):
    """Then the caller has to state it."""
    assert load_machine(tmp_path / "table.csv") is None


def test_every_wrong_key_is_named_with_its_line(tmp_path):
    """As in every configuration."""
    (tmp_path / "table.yaml").write_text("cluster: h100_ib\nnodes: 0\nlibrary: NCCL\nmode: loop\n")
    with pytest.raises(ConfigError) as caught:
        load_machine(tmp_path / "table.csv")
    assert [problem.line for problem in caught.value.problems] == [2, 4]
    assert "one of back_to_back, torch, xla" in str(caught.value)


@pytest.mark.parametrize(
    ("written", "read"),
    [("NVLSTree", "nvls_tree"), ("NVLS_TREE", "nvls_tree"), ("CollNetDirect", "collnet_direct")],
)
def test_algorithms_may_be_spelled_as_nccl_does(tmp_path, written, read):
    """As NCCL_ALGO takes them, and as its log prints them."""
    table = tmp_path / "own.csv"
    table.with_suffix(".yaml").write_text(
        "cluster: h100_ib\nnodes: 2\nlibrary: NCCL 2.28.7\nmode: back_to_back\n"
        f"algorithms: {written}\nprotocols: [SIMPLE]\n"
    )
    machine = load_machine(table)
    assert (machine.algorithms, machine.protocols) == ((read,), ("Simple",))
