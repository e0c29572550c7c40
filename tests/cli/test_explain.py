"""`simrank explain`: why a collective takes as long as predicted."""

import pytest

from simrank.cli import main


def run(capsys, *args):
    with pytest.raises(SystemExit) as caught:
        main(["explain", *args])
    return caught.value.code, *capsys.readouterr()


def test_the_answer_is_first_then_the_candidates_then_the_numbers(capsys):
    """With a source for each number."""
    status, out, _ = run(capsys, "--cluster", "h100_ib", "--size", "1MiB")
    assert status == 0
    assert out.startswith("all_reduce of 1MiB on 16 ranks of h100_ib (2 nodes): ")
    assert "NCCL takes tree LL128, whose estimate is the least." in out
    assert "14 steps x 1.25 us inside nodes + 2 x 8.5 us between" in out
    assert "nine of ten measured times would be between" in out
    assert "nic_bandwidth of h100_ib 47.5 GB/s measured, NVIDIA/nccl-tests" in " ".join(out.split())
    assert "fitted to h100x16_nebius_ib_allreduce" in out
    assert "NVIDIA/nccl v2.30.7 src/graph/tuning.cc" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--size", "16"], "a size with a unit"),
        (["--collective", "all_red"], "all_reduce, all_gather"),
        (["--num-ranks", "9"], "expected 2 to 8, the devices of hgx_h100"),
        (["--cluster", "h100x"], "one of a100_efa"),
    ],
)
def test_bad_usage_says_what_may_stand_there(capsys, args, message):
    """Exit status 2."""
    status, _, err = run(capsys, *args)
    assert status == 2
    assert message in " ".join("".join(c if c.isascii() else " " for c in err).split())
