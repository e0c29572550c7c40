"""`simrank diagnose`: records of a hung job, explained at the command line."""

import json

import pytest

from tests.diagnose.jobs import records_of
from tests.diagnose.test_causes import FAULTS, loop


@pytest.fixture
def folder(tmp_path):
    """Return the records of a job in which rank 2 left out a call."""
    records_of(tmp_path, lambda rank, ctx: loop(rank, ctx, FAULTS["skipped"][0]))
    return tmp_path


def test_a_hang_has_status_1_and_names_its_cause(folder, cli):
    """With the line, in under a second."""
    status, out, err = cli("diagnose", folder)
    assert (status, err) == (1, "")
    assert "CAUSE (high confidence): rank 2 skipped or put off broadcast at test_causes.py:" in out


def test_json_is_one_document(folder, cli):
    """Of files that are named one by one; without a replay."""
    status, out, _ = cli("diagnose", "--json", "--no-replay", *sorted(folder.iterdir()))
    found = json.loads(out)
    assert (status, found["ranks"], found["confidence"], found["replay"]) == (
        1,
        [2],
        "medium",
        None,
    )


def test_a_right_run_has_status_0(tmp_path, cli):
    """Nothing is unfinished."""
    records_of(tmp_path, loop)
    status, out, _ = cli("diagnose", tmp_path)
    assert status == 0
    assert "NO HANG" in out


def test_a_folder_without_records_is_said(tmp_path, cli):
    """With another status than a hang."""
    (tmp_path / "settings.json").write_text("{}")
    status, _, err = cli("diagnose", tmp_path)
    assert (status, err) == (2, "simrank: there is no flight record here\n")
    status, _, err = cli("diagnose", tmp_path / "nowhere")
    assert status == 2
    assert "there is no such file or folder" in err
