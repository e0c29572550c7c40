"""What nccl-tests prints is read as it is pasted."""

from pathlib import Path

import pytest

from simrank.calibration.accuracy import measured_series
from simrank.calibration.measured_text import rows_by_file
from simrank.calibration.nccl_tests_output import (
    CollectiveRun,
    collective_named,
    is_nccl_tests,
    is_time,
    parse_nccl_tests,
)
from simrank.errors import ConfigError

# The form of NVIDIA/nccl-tests' README and of src/common.cu.
OUTPUT = (Path(__file__).parent / "nccl_tests" / "all_reduce.txt").read_text()


def test_what_ran_and_on_which_ranks_is_read_from_the_comments():
    """Sizes of nothing are left out; times are those of out-of-place."""
    rows = parse_nccl_tests(OUTPUT, "out.txt")
    assert [(row.collective, row.num_ranks, row.dtype) for row in rows] == [
        ("all_reduce", 2, "float32")
    ] * 2
    assert [(row.size_bytes, row.time_us) for row in rows] == [(8, 12.9), (134217728, 500.0)]
    assert rows[1].busbw_GBps == pytest.approx(268.44, abs=0.01)


def test_what_the_output_does_not_say_may_be_said():
    """Lines alone, as people paste them."""
    (line,) = [line for line in OUTPUT.splitlines() if line.startswith("   134217728")]
    (row,) = parse_nccl_tests(line, "pasted", "sendrecv", 16)
    assert (row.collective, row.num_ranks) == ("sendrecv", 16)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OUTPUT.replace("all_reduce_perf", ""), "got none"),
        (OUTPUT.replace("all_reduce_perf", "hypercube_perf"), "got hypercube"),
        (OUTPUT.replace("#  Rank", "#  rang"), "--num-ranks 8"),
        (OUTPUT.replace("12.90", "x"), r"out.txt:13: time: expected a time in microseconds"),
        (OUTPUT.replace("12.90", "-1"), r"out.txt:13: time: expected a time in microseconds"),
        (OUTPUT.replace("float", "f33"), r"out.txt:12: type: expected one of"),
        (OUTPUT[: OUTPUT.index("    12.90")], r"out.txt:13: expected size, count"),
        (OUTPUT.replace("     time", "  cputime"), r"out.txt:10: .*run it without -C"),
        (OUTPUT.replace("134217728", "9" * 19), "out.txt:14: size: expected bytes"),
        ("# all_reduce_perf\n#  Rank  0\n", "lines of size, count"),
    ],
)
def test_malformed_output_is_named_with_its_line(text, message):
    """File, line and what was expected."""
    with pytest.raises(ConfigError, match=message):
        parse_nccl_tests(text, "out.txt")


def test_digits_of_other_scripts_are_no_sizes():
    """Python calls them digits, and cannot read them."""
    (row,) = parse_nccl_tests(OUTPUT.replace("134217728", "\u00b2"), "out.txt")
    assert row.size_bytes == 8


def test_older_columns_are_found_by_their_heading():
    """Before nccl-tests 2.11 there was no root."""
    text = (
        "# all_reduce_perf\n#  Rank  0\n#  Rank  1\n"
        "#  size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error\n"
        "  1024  256  float  sum  50.0  20.97  20.97  1e-07  49.0  21.4  21.4  1e-07\n"
    )
    (row,) = parse_nccl_tests(text, "old")
    assert row.time_us == 50
    with pytest.raises(ConfigError, match="root"):
        parse_nccl_tests(text.replace("#  size", "#  what"), "old")


HOSTS = "".join(f"#  Rank {rank} Group 0 Pid {rank} on a device {rank}\n" for rank in range(2))
SLURM = """\
 0: # Collective test starting: all_gather_perf
 0: #       size         count      type   redop    root     time   algbw   busbw #wrong
 0:        65536           512     float    none      -1    107.5    0.61    0.59      0
"""
HYDRA = """\
[0] # all_reduce_perf
[0]      1048576        262144     float     sum      -1[0]    1626.5    0.64    1.24      0[0] 1.0
"""
TAGGED = """\
[1,0]<stdout>:# all_reduce_perf
[1,0]<stdout>:           8             2     float     sum      -1    12.90    0.00    0.00      0
"""
OLD_GATHER = """\
all_gather_perf -g 8 -b 4294967296 -e 4294967296 -n 100
                                             out-of-place                       in-place
       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
  4294967296     134217728   float    29122  129.05  129.05  1e+00    29169  128.84  128.84  1e+00
"""
OLD_BROADCAST = """\
# broadcast_perf
#       size         count    type    root     time   algbw   busbw  error     time
           8             2   float       0    45.82    0.00    0.00    N/A    38.17
"""
HELP = """\
# all_reduce_perf
8 more processes have sent help message help-mtl-ofi.txt / OFI call fail
           8             2     float     sum      -1    20.26    0.00    0.00      0    17.74
1 more process has sent help message help-mtl-ofi.txt / OFI call fail
"""
RCCL = """\
#     size      count    type  redop   root   time  algbw  busbw #wrong   algo  proto  nchannels
   1048576     262144   float    sum     -1  76.26  13.75  25.78      0  Direct SIMPLE        32
# Collective test concluded: all_reduce_perf
"""
LOGGED = """\
2026-02-16T10:00:03.000000000Z # all_reduce_perf_mpi
2026-02-16T10:00:04.000000000Z   8589934592    2147483648     float  sum  -1  18551.0  463.04 897.15
"""
COLOURED = "\x1b[32m# all_reduce_perf\x1b[0m\n\x1b[1m 8 2 float sum -1 9.5 0 0 0\x1b[0m\n"


@pytest.mark.parametrize(
    ("text", "num_ranks", "collective", "size_bytes", "time_us"),
    [
        (SLURM, 32, "all_gather", 65536, 107.5),  # srun --label: ROCm/rccl issue 1490.
        (HYDRA, 32, "all_reduce", 1 << 20, 1626.5),  # MPICH's hydra: NVIDIA/nccl issue 1453.
        (TAGGED, 8, "all_reduce", 8, 12.9),  # mpirun --tag-output: aws/aws-k8s-tester pull 503.
        (OLD_GATHER, 8, "all_gather", 1 << 32, 29122),  # 2020: NVIDIA/nccl-tests issue 37.
        (OLD_BROADCAST, 8, "broadcast", 8, 45.82),  # 2021: NVIDIA/nccl-tests issue 82.
        (HELP, 8, "all_reduce", 8, 20.26),  # Open MPI 5 on eight A100.
        (RCCL, 16, "all_reduce", 1 << 20, 76.26),  # rccl-tests with algorithm and channels.
        (LOGGED, 32, "all_reduce", 1 << 33, 18551),  # Logs of a container; errors left out.
        (COLOURED, 8, "all_reduce", 8, 9.5),  # A terminal's colours.
    ],
)
def test_what_launchers_and_versions_make_of_it_is_read(
    text, num_ranks, collective, size_bytes, time_us
):
    """As pasted into public issues and pages; in-place columns are shortened here."""
    ((row,),) = rows_by_file({"x": text}, num_ranks=num_ranks).values()
    assert (row.collective, row.size_bytes, row.time_us) == (collective, size_bytes, time_us)


def test_ranks_are_read_behind_marks_and_without_their_sign():
    """Some sites take the `#` away; NVIDIA/nccl issue 583."""
    line = "  8 2 float sum -1 12.9 0 0 0\n"
    for hosts in (HOSTS, HOSTS.replace("#", ""), HOSTS.replace("#", " 0: #")):
        ((row,),) = rows_by_file({"x": f"all_reduce_perf\n{hosts}{line}"}).values()
        assert (row.num_ranks, row.ranks_per_host) == (2, (2,))


def test_a_list_of_ranks_with_gaps_asks_how_many_there_are():
    """Pages cut it short: coreweave/nccl-tests pull 43 shows rank 71 alone."""
    text = (
        "# all_reduce_perf\n#  Rank 71 Group  0 Pid 1 on a device  3\n 8 2 float sum -1 9.5 0 0 0"
    )
    with pytest.raises(ConfigError, match=r"to 71, got 1 of them\n.*--num-ranks 72"):
        parse_nccl_tests(text, "x")
    (row,) = parse_nccl_tests(text, "x", None, 72)
    assert (row.num_ranks, row.ranks_per_host) == (72, ())


def test_unsigned_numbers_take_the_time_of_signed_ones():
    """`-d all` prints them: two H200 nodes of Dell."""
    line = " 10737418240 2684354560 uint32 sum -1 44357.5 242.07 453.87 0"
    (row,) = parse_nccl_tests(line, "x", "all_reduce", 16)
    assert row.dtype == "int32"


def test_two_runs_in_one_text_are_not_one_of_twice_the_ranks():
    """Nobody knows which lines are whose."""
    with pytest.raises(
        ConfigError, match=r"the output of one run, got rank 0 twice\n.*build nccl-tests with MPI=1"
    ):
        parse_nccl_tests(OUTPUT + OUTPUT, "out.txt")


def test_ranks_lie_on_the_hosts_that_are_listed():
    """Four hosts of two, not one node of eight."""
    lines = "".join(
        f"#  Rank {rank} Group 0 Pid 1 on host{rank // 2} device 0\n" for rank in range(8)
    )
    text = f"# all_reduce_perf\n{lines}  1024 256 float sum -1 40.0 0 0 0 40.0 0 0 0\n"
    (row,) = parse_nccl_tests(text, "pasted")
    assert row.ranks_per_host == (2, 2, 2, 2)
    (series,) = measured_series({"pasted": text}, "h100_ib")
    shape = series.measured.comm.shape
    assert (shape.num_ranks, shape.num_local, shape.num_nodes) == (8, 2, 4)


def test_a_table_is_told_from_output():
    """By its first line, or by a line of numbers, whatever a launcher said before it."""
    assert is_nccl_tests(OUTPUT)
    assert is_nccl_tests("Warning: no hosts, one node\n  8 2 float sum -1 12.9 0 0 0\n")
    assert is_nccl_tests("  8 2 float sum -1 12.9 0 0 0 12.8 0 0 0")
    assert not is_nccl_tests("system,op,nranks,bytes,dtype,time_us\n")


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,{rank}]<stdout>:",  # mpirun --tag-output
        "[1,{rank}]<stdout>: ",
        " {rank}: ",  # srun --label
        "2025-01-02T03:04:05.{rank}78Z ",
        "\x1b[32m[launcher-{rank}] \x1b[0m",
    ],
)
def test_what_a_launcher_writes_before_each_line_is_left_out(prefix):
    """With any numbers in it; lines keep theirs in messages."""
    lines = OUTPUT.splitlines()
    text = "\n".join(prefix.format(rank=i % 8) + line for i, line in enumerate(lines))
    assert rows_by_file({"out.txt": text}) == rows_by_file({"out.txt": OUTPUT})
    with pytest.raises(ConfigError, match=r"out\.txt:13: time"):
        rows_by_file({"out.txt": text.replace("12.90", "x")})


@pytest.mark.parametrize("tag", ["[{rank}]", "[1,{rank}]<stdout>:"])
def test_tags_within_a_line_are_left_out(tag):
    """As in NVIDIA/nccl#1453: each line is written in two parts, each of which has one."""
    lines = [
        tag.format(rank=0) + line.replace(" sum      -1", " sum      -1" + tag.format(rank=0))
        for line in OUTPUT.splitlines()
    ]
    assert any(line.count(tag.format(rank=0)) == 2 for line in lines)
    assert rows_by_file({"out.txt": "\n".join(lines)}) == rows_by_file({"out.txt": OUTPUT})


def test_output_without_its_number_signs_is_read():
    """As in NVIDIA/nccl#583: a page took them for headings."""
    text = "\n".join(line.removeprefix("#") for line in OUTPUT.splitlines())
    assert rows_by_file({"out.txt": text}) == rows_by_file({"out.txt": OUTPUT})


def test_a_line_without_end_is_read_in_time():
    """What stands before a line is short, so that nobody searches for ever."""
    with pytest.raises(ConfigError):
        rows_by_file({"out.txt": "1 " * 200_000 + " " * 200_000})


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({}, r"out\.txt:14: busbw: .* 1 times algbw, .* on 2 ranks, got 1.998 times, as on 1,024"),
        ({"num_ranks": 512}, r"out\.txt:14: busbw: .* got 1.998 times, as on 1,024 to"),
        ({"num_ranks": 1024, "collective": "all_gather"}, "0.999 times algbw, as all_gather has"),
    ],
)
def test_ranks_and_collectives_that_the_bandwidths_contradict_are_refused(said, message):
    """A log of 1,024 ranks that lists two is none of two."""
    text = OUTPUT.replace("500.0  268.44  268.44", "500.0  268.44  536.35")
    with pytest.raises(ConfigError, match=message):
        parse_nccl_tests(text, "out.txt", **said)
    small, large = parse_nccl_tests(text, "out.txt", num_ranks=1024)
    assert (small.num_ranks, large.num_ranks) == (1024, 1024)


def test_ranks_alone_are_refused():
    """Processes that did not find each other reduce nothing: a bus bandwidth of 0."""
    text = "268435456 67108864 float sum -1 1266.2 212.00 0.00 0"
    with pytest.raises(ConfigError, match=r"got 0 times, as of a rank alone\n  to fix: build ncc"):
        parse_nccl_tests(text, "out.txt", "all_reduce", 8)
    small = parse_nccl_tests("8 2 float sum -1 21.1 0.00 0.00 0", "out.txt", "all_reduce", 8)
    assert small[0].time_us == 21.1


@pytest.mark.parametrize(
    ("pids", "launch"),
    [((7, 8), "processes"), ((7, 7), "threads"), ((None, None), "")],
)
def test_processes_and_threads_are_told_by_their_pids(pids, launch):
    """A list of ranks without them says nothing."""
    ranks = "".join(
        f"#  Rank {rank}{'' if pid is None else f' Pid {pid}'} on host device {rank}\n"
        for rank, pid in enumerate(pids)
    )
    (row,) = parse_nccl_tests(ranks + "8 2 float sum -1 9 0 0 0", "out.txt", "all_reduce")
    assert row.launch == launch


# ---- what all sizes of a run share ----


def test_bandwidths_follow_from_the_time():
    """The bus has nccl-tests' factor of the collective."""
    row = CollectiveRun("all_reduce", 4, (2, 2)).row("f", 1 << 20, "float32", 10.0)
    assert row.algbw_GBps == pytest.approx(104.8576)
    assert row.busbw_GBps == pytest.approx(104.8576 * 1.5)
    assert (row.source, row.ranks_per_host) == ("f", (2, 2))


def test_times_are_finite_and_above_zero():
    """What is beyond is a slip, and would make infinite bandwidths."""
    assert is_time(0.12)
    assert not any(is_time(each) for each in (0, -1, 1e-300, float("inf"), float("nan")))


def test_a_collective_has_a_name():
    """nccl-tests' or simrank's; none is said so, with its line."""
    assert collective_named("alltoall", "f") == "all_to_all"
    with pytest.raises(ConfigError, match=r"f:3: expected a collective: .* got none"):
        collective_named(None, "f", 3)


# ---- How a log was measured ----

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
