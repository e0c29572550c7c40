"""What `simrank run` records: the flight recorder, by its option and by torch's variables."""

import os
import pickle

import pytest

HANGS = """
import simrank.distributed as dist
import simrank as torch
dist.init_process_group("nccl")
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(2))
"""


@pytest.fixture
def hangs(tmp_path):
    """A script whose rank 0 waits for ever."""
    path = tmp_path / "hangs.py"
    path.write_text(HANGS)
    return path


def test_a_hang_says_where_the_flight_records_are(cli, hangs, tmp_path):
    """And what reads them; each rank has a file."""
    folder = tmp_path / "records"
    status, _, err = cli("run", "--nproc-per-node", 2, "--flight-recorder", folder, hangs)
    assert status == 1
    assert f"simrank diagnose {folder}" in err
    assert sorted(p.name for p in folder.iterdir()) == ["nccl_trace_rank_0", "nccl_trace_rank_1"]
    dump = pickle.loads((folder / "nccl_trace_rank_0").read_bytes())
    assert dump["entries"][0]["frames"][0]["line"] == 6


def test_torch_s_variable_names_the_files(cli, hangs, tmp_path, monkeypatch):
    """Unless TORCH_NCCL_DUMP_ON_TIMEOUT says no."""
    monkeypatch.setenv("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", str(tmp_path / "trace_"))
    monkeypatch.setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
    cli("run", "--nproc-per-node", 2, hangs)
    assert not list(tmp_path.glob("trace_*"))
    monkeypatch.setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    cli("run", "--nproc-per-node", 2, hangs)
    assert sorted(p.name for p in tmp_path.glob("trace_*")) == ["trace_0", "trace_1"]


def test_a_folder_that_cannot_be_made_is_bad_usage(cli, hangs, tmp_path):
    """Before anything runs."""
    status, _, err = cli("run", "--flight-recorder", hangs / "below", hangs)
    assert status == 2
    assert "--flight-recorder: expected a folder" in err


def test_variables_that_are_set_are_told_on_one_line(cli, tmp_path, monkeypatch):
    """Which have a meaning here, which torch reads itself, and which change nothing."""
    for name in [name for name in os.environ if name.startswith(("TORCH_", "NCCL_"))]:
        monkeypatch.delenv(name)
    path = tmp_path / "ends.py"
    path.write_text("")
    _, _, err = cli("run", "--nproc-per-node", 2, path)
    assert "environment variables" not in err
    for name in ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_LOGS", "NCCL_DEBUG", "NCCL_ALGO"):
        monkeypatch.setenv(name, "1")
    _, _, err = cli("run", "--nproc-per-node", 2, path)
    assert err.splitlines()[0] == (
        "simrank: environment variables honoured: NCCL_ALGO, TORCH_NCCL_TRACE_BUFFER_SIZE; "
        "read by torch itself: TORCH_LOGS; without effect here: NCCL_DEBUG"
    )
    _, _, err = cli("run", "--nproc-per-node", 2, "--summary", "json", path)
    assert "environment variables" not in err


BRANCHES = HANGS.replace("dist.get_rank() == 0", "loss > 2.5").replace(
    "if loss", "loss = 2 + dist.get_rank()\nif loss"
)


def test_the_line_at_which_ranks_parted_is_part_of_the_report(cli, tmp_path):
    """With what its condition saw, by a second run, unless it is not wanted."""
    path = tmp_path / "branches.py"
    path.write_text(BRANCHES)
    _, _, err = cli("run", "--nproc-per-node", 2, "--no-second-run", path)
    assert "diverged at" not in err
    expected = (
        "diverged at branches.py:6 `if loss > 2.5:`: rank 0 did not (loss = 2); rank 1 took it"
    )
    for options in (), ("--divergence",), ("--checks", "all"):
        status, _, err = cli("run", "--nproc-per-node", 2, *options, path)
        assert status == 1
        assert expected in err
        assert ("a second run looked for the line" in err) == (not options)
