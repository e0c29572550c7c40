"""What an engineer on call reads: at most twelve lines, and what is not known."""

import json

from simrank.diagnose import diagnose, read_records
from simrank.diagnose.report import MAX_LINES

from .jobs import said
from .test_causes import FAULTS, loop


def skipped(rank, ctx):
    loop(rank, ctx, FAULTS["skipped"][0])


def test_the_report_says_what_happened_where_and_what_to_do(tmp_path):
    """First the cause, last the next step."""
    text = str(said(tmp_path, skipped, replay=True))
    lines = text.splitlines()
    assert len(lines) <= MAX_LINES
    assert lines[0] == "4 of 4 flight records (nccl, version 2.10): 47 calls of 1 group"
    assert lines[1].startswith(
        "CAUSE (high confidence): rank 2 skipped or put off broadcast at test_causes.py:"
    )
    assert "replay: hangs as recorded; with broadcast of rank 2 at test_causes.py:" in text
    assert lines[-1].startswith("  next: what leads to test_causes.py:")


def test_long_reports_keep_their_end(tmp_path):
    """What is not known, and what to do, stand even where many ranks wait."""
    said(tmp_path, skipped)
    for rank in range(3):
        (tmp_path / f"broken_{rank}").write_bytes(b"\x80\x02broken")
    text = str(diagnose(read_records([tmp_path])))
    assert len(text.splitlines()) <= MAX_LINES
    assert "  next: " in text
    assert "  note: broken_0: not read: " in text


def test_as_plain_data_it_has_the_same_facts(tmp_path):
    """For other programs."""
    found = said(tmp_path, skipped, replay=True).as_dict()
    assert json.loads(json.dumps(found)) == found
    assert (found["hangs"], found["kind"], found["ranks"]) == (True, "skipped", [2])
    assert found["line"]["function"] == "share"
    assert found["replay"]["ends"] is True
    assert "not yet on NCCL's records" in found["evidence"]
