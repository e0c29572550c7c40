"""Records of real gloo processes: the rank at fault, and no rank of a right job."""

import random

import pytest

from simrank.diagnose import diagnose, read_records
from tests.diagnose import gloo_jobs

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.parametrize("name", gloo_jobs.FAULTS)
def test_the_rank_at_fault_of_a_real_job_is_named(name, tmp_path):
    """With its line, and confidence that is high only where records can tell."""
    folder = tmp_path / "records"
    folder.mkdir()
    gloo_jobs.run(name, folder)
    found, fault = diagnose(read_records([folder])), gloo_jobs.FAULTS[name]
    if not fault.ranks:
        assert found.cause is None
        assert "NO UNFINISHED CALL" in str(found)
        return
    assert found.cause.ranks == fault.ranks
    assert found.cause.kind in fault.kinds
    assert not fault.tag or found.cause.place.line == gloo_jobs.line(fault.tag)
    is_told_by_calls = found.cause.kind not in ("absent", "no record")
    assert found.confidence == ("high" if is_told_by_calls else "medium")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_rank_is_named_in_a_right_job_that_is_cut(seed, tmp_path):
    """At random times, and with skew between ranks."""
    folder = tmp_path / "records"
    folder.mkdir()
    draw = random.Random(seed)
    gloo_jobs.run("none", folder, [draw.uniform(0.2, 0.8) for _ in range(gloo_jobs.NUM_RANKS)])
    found = diagnose(read_records([folder]))
    assert found.cause is None, str(found)
