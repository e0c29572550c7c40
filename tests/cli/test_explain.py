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
    assert "NCCL chooses tree LL128: lowest estimate." in out
    assert "14 steps x 1.25 us inside nodes + 2 x 8.5 us between" in out
    assert "90% prediction interval:" in out
    assert "nic_bandwidth of h100_ib 47.5 GB/s measured, NVIDIA/nccl-tests" in " ".join(out.split())
    assert "site: another machine of this kind" in out
    assert "several nodes over ib: " in " ".join(out.split())
    assert "NVIDIA/nccl v2.30.7 src/graph/tuning.cc" in out


def test_without_a_calibration_no_constant_is_fitted(capsys):
    """`--calibration none`: NCCL's own."""
    status, out, _ = run(capsys, "--cluster", "h100_ib", "--size", "1MiB", "--calibration", "none")
    assert status == 0
    assert "fitted to 106 series" not in out
    assert "NVIDIA/nccl v2.30.7 src/graph/tuning.cc" in out


def test_a_tuner_file_decides_and_what_it_asks_for_in_vain_is_said(capsys, tmp_path):
    """With file and line; what is taken stands first."""
    path = tmp_path / "tuner.csv"
    path.write_text("allreduce,0,99,ring,ll,0,2,16\nallreduce,0,9999,nvls,simple,0,-1,-1\n")
    args = ("--cluster", "h100_ib", "--tuner", str(path), "--size")
    status, out, _ = run(capsys, *args, "64B")
    assert status == 0
    assert f"NCCL chooses ring LL: set by {path}:1." in out
    assert out[out.index("algorithm") :].splitlines()[1].split()[:2] == ["ring", "LL"]
    _, out, _ = run(capsys, *args, "1KiB")
    assert f"{path}:2 (nvls simple) is ignored: NCCL does not offer it" in " ".join(out.split())
    _, out, _ = run(capsys, *args, "1MiB")
    assert f"lowest estimate, no entry in {path} applies." in " ".join(out.split())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--size", "16 parsecs"], "unknown unit `parsecs`"),
        (["--size", "0"], "a size of at least 1 byte"),
        (["--collective", "all_red"], "all_reduce, all_gather"),
        (["--num-ranks", "9"], "expected 2 to 8, the devices of hgx_h100"),
        (["--cluster", "h100x"], "one of h100_tcpx"),
        (["--tuner", "none.csv"], "none.csv: expected a readable file, got no such file"),
    ],
)
def test_bad_usage_says_what_may_stand_there(capsys, args, message):
    """Exit status 2."""
    status, _, err = run(capsys, *args)
    assert status == 2
    assert message in " ".join("".join(c if c.isascii() else " " for c in err).split())


def test_a_page_can_be_written(capsys, tmp_path):
    """With the times of all candidates over size."""
    page = tmp_path / "page.html"
    status, out, _ = run(capsys, "--cluster", "h100_ib", "--size", "1MiB", "--html", str(page))
    assert status == 0
    assert out.startswith("all_reduce of 1MiB")
    assert "Time over size" in page.read_text()
    status, _, err = run(capsys, "--html", str(tmp_path / "none" / "page.html"))
    assert status == 2
    assert "no folder" in err


def test_what_the_network_leaves_to_choose_from_is_said(capsys):
    """With its source; there are no other candidates."""
    status, out, _ = run(capsys, "--cluster", "a100_efa", "--size", "1MiB")
    assert status == 0
    assert "protocols of a100_efa" in out
    assert "40 us of each step" in out
    assert " LL " not in out


def test_a_group_of_devices_is_explained(capsys):
    """One per node, as `predict` takes it."""
    args = ("--cluster", "h100_ib", "--nodes", "4", "--ranks", "0-31:8", "--size", "1MiB")
    status, out, _ = run(capsys, *args)
    assert status == 0
    assert "on 4 ranks of h100_ib" in out
