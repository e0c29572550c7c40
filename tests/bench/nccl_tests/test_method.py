"""How a log was measured: forced algorithms, graphs and host threads, from wherever it says so."""

import pytest

from simrank.bench.accuracy import measured_series
from simrank.bench.nccl_tests_output import parse_nccl_tests
from simrank.errors import ConfigError

RANKS = "".join(f"#  Rank {rank} Group 0 Pid 1 on host device {rank}\n" for rank in range(8))
LINE = "  1048576  262144  {dtype}  sum  -1  30.0  34.95  61.17  0\n"


def log(said, dtype="float"):
    return f"{said}\n# all_reduce_perf\n{RANKS}{LINE.format(dtype=dtype)}"


@pytest.mark.parametrize(
    ("said", "algorithms", "protocols"),
    [
        (
            "+ mpirun -x NCCL_ALGO=Ring -x NCCL_PROTO=LL128 all_reduce_perf -b 8",
            ("ring",),
            ("LL128",),
        ),
        ("host:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Tree", ("tree",), ()),
        ("export NCCL_PROTO='Simple'", (), ("Simple",)),
        ("nothing", (), ()),
    ],
)
def test_a_forced_choice_is_read_from_command_line_environment_and_log(said, algorithms, protocols):
    """And predictions choose from it."""
    (row,) = parse_nccl_tests(log(said), "a log")
    assert (row.algorithms, row.protocols) == (algorithms, protocols)
    (series,) = measured_series({"a log": log(said)}, "hgx_h100")
    (choice,) = series.errors().chosen
    assert choice[0] in (algorithms or (choice[0],))
    assert choice[1] in (protocols or (choice[1],))


@pytest.mark.parametrize(
    ("said", "gpus", "is_graph"),
    [
        ("# nThread 1 nGpus 8 minBytes 8 maxBytes 16 step: 2(factor) graph: 0", 8, False),
        ("# nThread 1 nGpus 8 minBytes 8 maxBytes 16 step: 2(factor) graph: 1", 8, True),
        ("./build/all_reduce_perf -b 8 -e 1G -g 8 -G 3", 8, True),
        ("./build/all_reduce_perf -b 8 -e 1G", 1, False),
    ],
)
def test_host_threads_and_graphs_are_read_from_heading_and_command_line(said, gpus, is_graph):
    """A graph is launched once: no call waits for eight launches."""
    (row,) = parse_nccl_tests(log(said), "a log")
    assert (row.gpus_per_thread, row.is_graph) == (gpus, is_graph)
    (series,) = measured_series({"a log": log(said)}, "hgx_h100")
    assert series.gpus_per_thread == (1 if is_graph else gpus)


def test_a_value_that_nccl_does_not_know_is_refused_by_name():
    """With the file and the variable."""
    with pytest.raises(ConfigError, match=r"a log: NCCL_ALGO: expected names of tree, ring"):
        parse_nccl_tests(log("NCCL_ALGO=Rign all_reduce_perf"), "a log")


def test_a_switch_does_not_reduce_bytes():
    """int8 takes rings and trees; rows of both dtypes are two series."""
    both = log("nothing") + LINE.format(dtype="int8").replace("1048576", "536870912")
    series = measured_series({"a log": both}, "hgx_h100")
    assert len(series) == 2
    assert series[0].measured.comm.spec.algorithms == ()
    assert "nvls" not in series[1].measured.comm.spec.algorithms
    assert "ring" in series[1].measured.comm.spec.algorithms
