"""`simrank run --fold`: ranks that do the same run once."""

from __future__ import annotations

import re

import pytest

FOLDED_SCRIPT = """
import simrank
import simrank.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
x = simrank.ones(65536, device="cuda")
dist.all_reduce(x)
{more}
print("rank", rank)
"""
OPTIONS = ("run", "--cluster", "h100_ib", "--nnodes", "2", "--prefix", "none")


@pytest.fixture
def fold(cli, tmp_path):
    """Run a script with --shape-only and further options; return status, stdout and stderr."""

    def run(*options, more="", data=False):
        script = tmp_path / "train.py"
        script.write_text(FOLDED_SCRIPT.format(more=more))
        kind = () if data else ("--shape-only",)
        return cli(*OPTIONS, *kind, *options, str(script))

    return run


def test_ranks_that_do_the_same_run_once_without_data(fold):
    """The summary is that of all ranks, and stderr says which run."""
    _, out, err = fold()
    assert out == "rank 0\n"
    assert "simrank: 1 of 16 ranks run (folded: world 16)" in err
    assert "ranks 0-15: compute" in err
    _, all_out, all_err = fold("--fold", "none")
    assert all_out.count("rank") == 16
    assert [line for line in all_err.splitlines() if "ranks 0-15: comp" in line] == [
        line for line in err.splitlines() if "ranks 0-15: comp" in line
    ]


def test_all_ranks_run_with_data(fold):
    """Each has numbers of its own."""
    _, out, _ = fold(data=True)
    assert out.count("rank") == 16


@pytest.mark.parametrize("options", [("--fold", "none"), ("--divergence",)])
def test_many_ranks_that_all_run_say_first_what_they_take(fold, options):
    """Measured on one of them; fewer end before that matters."""
    _, _, err = fold("--nnodes", "8", *options)
    first = err.partition("\n")[0]
    assert re.match(r"simrank: all 64 ranks run, and take at least 64 MiB .* of CPU time", first)
    _, _, err = fold("--nnodes", "4", *options)
    assert "at least" not in err


@pytest.mark.parametrize(
    ("options", "data", "message"),
    [
        (("--fold", "world"), True, "world beside a run with data; add --shape-only"),
        (("--fold", "world", "--races", "report"), False, "got world beside --races"),
        (("--fold", "world", "--divergence"), False, "got world beside --divergence"),
        (("--fold", "tp"), False, "axes of this program: world (16 ranks), got tp"),
    ],
)
def test_what_cannot_be_folded_is_refused(fold, options, data, message):
    """With the reason."""
    status, _, err = fold(*options, data=data)
    assert status == 2
    assert message in err


def test_all_ranks_run_where_each_is_observed(fold):
    """By default, without a message."""
    status, out, err = fold("--divergence")
    assert status == 0
    assert out.count("rank") == 16
    assert "ranks run" not in err


def test_a_program_that_sends_to_who_does_not_run_runs_again_with_all(fold):
    """After the first step, which alone is compared; the reason is printed."""
    more = """
from simrank.ranks import require_rank
probe = require_rank("x").context.probe
if probe is not None:
    raise SystemExit(0)
dist.send(x, rank + 1) if rank % 2 == 0 else dist.recv(x, rank - 1)
"""
    status, out, err = fold(more=more)
    assert status == 0
    assert out.count("rank") == 16
    assert "simrank: all ranks run, from the start: send to rank 1 of rank 0" in err


def _faulty(tmp_path, fault):
    (tmp_path / "faults.yaml").write_text(f"faults: [{fault}]")
    return "--faults", str(tmp_path / "faults.yaml")


@pytest.mark.parametrize(
    ("fault", "ran"),
    [
        ("{slow: 5, factor: 2}", "2 of 16 ranks"),
        ("{slow: all, factor: 2}", "1 of 16 ranks"),
        ('{slow_link: "node 1: gpu3 -> nvswitch", factor: 2}', "3 of 16 ranks"),
        ("{delay_arrivals: [0, 1], by: 10 us}", "3 of 16 ranks"),
        ("{delay_arrivals: all, up_to: 10 us}", None),
        ("{kill: 3, at: 1 s}", None),
    ],
)
def test_faulty_ranks_run_for_themselves_where_others_stay_alike(fold, tmp_path, fault, ran):
    """Of other faults all ranks run."""
    options = _faulty(tmp_path, fault)
    status, out, err = fold(*options)
    assert status == 0
    if ran is None:
        assert out.count("rank") == 16
        return
    assert f"simrank: {ran} run (folded: world 16)" in err
    whole = fold(*options, "--fold", "none")[2]
    times = [line for line in whole.splitlines() if "compute" in line or "simulated" in line]
    assert times == [line for line in err.splitlines() if "compute" in line or "simulated" in line]


def test_a_rank_that_a_comparison_tells_apart_runs_for_itself(fold):
    """The summary names the ranks that did not run."""
    more = "if rank == 5: x * 2"
    status, _, err = fold(more=more)
    assert status == 0
    assert "rank 5 runs beside a representative, for train.py:9: " in err
    assert err.count("simulated time") == 1
    assert "not run: ranks 1-4, 6-15, taken as rank 0" in err
