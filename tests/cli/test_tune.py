"""`simrank tune`: a file for NCCL's tuner plugin."""

from simrank.config.tuner import COLUMNS, load_tuner


def test_a_file_is_shown_or_written(cli, tmp_path):
    """The same text; one collective, or all that the plugin knows."""
    out_file = tmp_path / "tuner.csv"
    args = ["tune", "--cluster", "h100_ib", "--collective", "all_reduce"]
    status, shown, _ = cli(*args)
    assert status == 0
    assert shown.splitlines()[0] == "# " + ",".join(COLUMNS)
    assert cli(*args, "--out", out_file) == (0, f"{out_file}\n", "")
    assert out_file.read_text() == shown
    assert {row.collective for row in load_tuner(out_file)} == {"all_reduce"}
    assert cli("tune", "--out", out_file)[0] == 0
    assert len({row.collective for row in load_tuner(out_file)}) == 5


def test_bad_usage_is_status_2(cli, tmp_path):
    """And nothing is written."""
    out_file = tmp_path / "tuner.csv"
    status, _, err = cli("tune", "--collective", "sendrecv", "--out", out_file)
    assert status == 2
    assert "expected one of all_reduce" in " ".join(err.split())
    assert not out_file.exists()
    assert cli("tune", "--cluster", "nope")[0] == 2
