"""nccl-tests' options and names, as one who knows them types them."""

import pytest

from simrank.cli.nccl_tests import SETTLED
from simrank.config.quantity import DTYPES, REDOPS

FAST = ["-b", "1K", "-e", "1K", "-n", "2"]


def rows_of(out):
    """Return the cells of every line of a table."""
    return [line.split() for line in out.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("all_reduce_perf", "all_reduce"),
        ("./build/alltoall_perf", "all_to_all"),
        ("alltoallv_perf", "all_to_all_v"),
        ("gather_perf", "gather"),
        ("scatter_perf", "scatter"),
        ("sendrecv_perf", "sendrecv"),
        ("reduce_scatter_perf", "reduce_scatter"),
        ("all_gather_perf", "all_gather"),
        ("broadcast_perf", "broadcast"),
        ("reduce_perf", "reduce"),
    ],
)
def test_the_names_of_nccl_tests_programs_are_targets(cli, target, name):
    """With the path of the program, too; data is right."""
    status, out, _ = cli("bench", target, *FAST, "-g", "3")
    assert status == 0
    assert f"# {name} auto float32" in out
    assert {cell for row in rows_of(out) for cell in (row[8], row[12])} <= {"0", "N/A"}
    assert all(row[8] == "0" for row in rows_of(out))


@pytest.mark.parametrize(
    ("target", "to_fix"),
    [
        ("all_reduc_perf", "write `all_reduce`"),
        ("sendrcv", "write `sendrecv`"),
        (
            "hypercube_perf",
            "write `all_gather --algorithm halving_doubling`, which exchanges alike",
        ),
    ],
)
def test_what_is_no_target_is_told_what_is(cli, target, to_fix):
    """Not that a YAML file is missing."""
    status, out, err = cli("bench", target)
    assert (status, out) == (2, "")
    assert err.endswith(f"got {target}\n  to fix: {to_fix}\n")


def test_options_that_ask_for_what_happens_anyway_are_taken(cli):
    """Short and long, each of their values; the table is that without them."""
    few = [*FAST, "-g", "2"]
    plain = cli("bench", "all_reduce", *few)
    for number in range(max(len(settled.taken) for settled in SETTLED)):
        having = [settled for settled in SETTLED if number < len(settled.taken)]
        for form in ("short", "long"):
            words = [word for each in having for word in (getattr(each, form), each.taken[number])]
            assert cli("bench", "all_reduce", *few, *words) == plain


@pytest.mark.parametrize("settled", SETTLED, ids=lambda settled: settled.long)
def test_other_values_are_refused_with_what_to_do_instead(cli, settled):
    """By name, before anything is printed."""
    status, out, err = cli("bench", "all_reduce", *FAST, settled.short, "7")
    assert (status, out) == (2, "")
    assert f"{settled.short}, {settled.long}: expected" in err
    assert f"got 7\n  to fix: {settled.instead}\n" in err


def test_threads_times_gpus_are_ranks(cli):
    """As nccl-tests counts; one GPU a thread, if only threads are given."""
    for options, num_ranks in ((["-t", "2", "-g", "3"], 6), (["-t", "4"], 4), (["-g", "5"], 5)):
        assert f"on {num_ranks} ranks" in cli("bench", "all_reduce", *FAST, *options)[1]
    status, _, err = cli("bench", "all_reduce", *FAST, "-t", "3", "-g", "3")
    assert status == 2
    assert "num_ranks: expected at most 8" in err


@pytest.mark.parametrize("word", ["-1", "all"])
def test_every_rank_is_root_in_turn(cli, word):
    """-r -1, and data is right with each."""
    status, out, _ = cli("bench", "broadcast", *FAST, "-g", "3", "-r", word)
    assert status == 0
    assert [row[4] for row in rows_of(out)] == ["0", "1", "2"]


def test_a_root_that_is_no_rank_is_refused(cli):
    """A word, and a rank outside."""
    assert "expected a rank, or -1" in cli("bench", "broadcast", *FAST, "-r", "first")[2]
    assert "root: expected a rank from 0 to 7" in cli("bench", "broadcast", *FAST, "-r", "8")[2]


def test_all_types_and_operations(cli):
    """-d all and -o all, each of them right."""
    options = ["-b", "64", "-e", "64", "-n", "1", "-g", "2", "-d", "all", "-o", "all"]
    status, out, _ = cli("bench", "all_reduce", *options)
    assert status == 0
    expected = [(dtype, redop) for dtype in DTYPES for redop in REDOPS]
    assert [(row[2], row[3]) for row in rows_of(out)] == expected
    assert "0 OK (100 of 100 rows checked)" in out


def test_the_average_is_over_ranks(cli):
    """0 rank 0, 1 mean, 2 least, 3 largest: of a reduce, whose root is last."""
    options = ["-b", "8", "-e", "8", "-n", "1", "-w", "0"]
    tables = [cli("bench", "reduce", *options, "-a", average)[1] for average in "0123"]
    rank0, mean, least, largest = (float(rows_of(table)[0][5]) for table in tables)
    assert least < mean < largest == rank0


def test_a_word_for_the_average_is_told_the_long_option(cli):
    """`-a ring` meant an algorithm in earlier versions."""
    status, out, err = cli("bench", "all_reduce", *FAST, "-a", "ring")
    assert (status, out) == (2, "")
    assert "-a, --average: expected 0 (rank 0's time)" in err
    assert "to fix: write `--algorithm ring`" in err
    assert "to fix" not in cli("bench", "all_reduce", *FAST, "-a", "4")[2]


def test_blocking_iterations_take_longer(cli):
    """-z 1: each is waited for, so that launches do not overlap."""
    plain, blocking = (
        float(rows_of(cli("bench", "all_reduce", *FAST, "-n", "20", "-z", value)[1])[0][5])
        for value in "01"
    )
    assert blocking > plain


def test_a_negative_check_is_refused(cli):
    """nccl-tests counts checks from 0."""
    status, out, err = cli("bench", "all_reduce", *FAST, "-c", "-1")
    assert (status, out) == (2, "")
    assert "--check" in err


def test_a_time_limit_ends_the_run(cli, tmp_path):
    """-T, in wall-clock seconds: status 1, and files that say that they are partial."""
    path = tmp_path / "rows.json"
    long = ("-n", "20000")  # Else it may be over before the watchdog's thread gets its turn.
    status, out, err = cli("bench", "all_reduce", *FAST, *long, "-T", "1e-9", "--json", path)
    assert status == 1
    assert "wall-clock time" in err
    assert "# Partial: 0 rows, then TimeLimitError" in out
    assert '"partial": "0 rows, then TimeLimitError' in path.read_text()
