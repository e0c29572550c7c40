"""`simrank run --fold`."""

from __future__ import annotations

import pytest

SCRIPT = """
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
        script.write_text(SCRIPT.format(more=more))
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
