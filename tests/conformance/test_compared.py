"""`simrank compare` agrees on the programs of this folder, and finds what was planted in others."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: nothing real to compare with")

from simrank.validate.compare import report
from simrank.validate.compare.comparison import (
    COLLECTIVES,
    ENDINGS,
    MESSAGES,
    RESULTS,
    compared,
)
from simrank.validate.compare.differences import Tolerance
from simrank.validate.compare.program import Job
from simrank.validate.compare.sides import pool_for, real_in, simulated

from .test_torch_programs import NAMES

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(300)]
FOLDER = Path(__file__).parent
QUICK = 6  # Of the programs; the others are slow together.


@pytest.fixture(scope="module")
def pools():
    """Return a pool for a number of ranks, started once."""
    known = {}

    def pool(num_ranks):
        if num_ranks not in known:
            known[num_ranks] = pool_for(job("compared", "ddp", num_ranks))
        return known[num_ranks]

    yield pool
    for each in known.values():
        each.close()


def job(file, name, num_ranks=2):
    return Job.of(f"{FOLDER / file}.py:{name}", (), num_ranks, "gloo")


def both(pools, of):
    return compared(of, simulated(of), real_in(pools(of.num_ranks), of), Tolerance())


@pytest.mark.parametrize("num_ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        *NAMES[:QUICK],
        *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[QUICK:]),
    ],
)
def test_a_program_agrees_with_real_processes(name, num_ranks, pools):
    """Values, endings, and every collective and message, DDP's and DTensor's own included."""
    found = both(pools, job("compared", name.replace(" ", "_"), num_ranks))
    assert found.findings == []
    assert sorted(found.likeness) == list(range(num_ranks))
    assert any(record.collectives or record.messages for record in found.real.records)


@pytest.mark.slow
def test_the_table_of_c10d_agrees_with_real_processes(pools):
    """Whatever both sides carry."""
    found = both(pools, job("compared", "c10d_table", 4))
    assert found.findings == []


# What was planted: the topic under which it is found, on which ranks, and words of the report.
PLANTED = {
    "one_element": (RESULTS, (1,), "value['loss'][0][1][2]: simulated", "1 of 12 elements"),
    "dtype": (RESULTS, (0, 1), "Tensor of float32 [3, 4], real Tensor of float64"),
    "nan": (RESULTS, (0, 1), "[2][3]: simulated", "real nan", "NaN on one side"),
    "ulps": (RESULTS, (0, 1), "max error 0.000", " ulp"),
    "shape": (RESULTS, (0, 1), "[3, 4], real Tensor of float32 [2, 4]"),
    "key": (RESULTS, (0, 1), "only real: ['step']"),
    "integer": (RESULTS, (0,), "simulated 1152921504606846976, real 1152921504606846977"),
    "order": (COLLECTIVES, (0, 1), "collective 1: simulated all_reduce", "real broadcast"),
    "size": (COLLECTIVES, (0, 1), "simulated all_reduce Float[4]", "real all_reduce Float[8]"),
    "type_of_call": (COLLECTIVES, (0, 1), "all_reduce Float[4]", "all_reduce Double[4]"),
    "extra": (COLLECTIVES, (0, 1), "1 simulated, 2 real; collective 2 is only real: barrier"),
    "missing": (COLLECTIVES, (0, 1), "2 simulated, 1 real; collective 2 is only simulated"),
    "group": (COLLECTIVES, (0, 1), "on ranks 0-1 at planted.py", "real all_reduce Float[4] on ra"),
    "message": (MESSAGES, (0,), "1 simulated, 2 real; message 2 is only real: "),
}
# Likewise; the pool replaces workers that failed, which takes seconds.
PLANTED_FAILURES = {
    "no_error": (ENDINGS, (1,), "simulated raised ValueError at planted.py", "real returned"),
    "other_error": (ENDINGS, (1,), "simulated raised ValueError", "real raised KeyError"),
    "other_rank": (ENDINGS, (0,), "simulated returned; real raised ValueError"),
    "exits": (ENDINGS, (1,), "simulated returned; real raised SystemExit"),
    "dies": (ENDINGS, (1,), "simulated returned; real died: "),
    "hangs": (ENDINGS, (0,), "simulated returned; real waits forever in all_reduce"),
    "waits_elsewhere": (ENDINGS, (0,), "waits forever in all_reduce", "forever in broadcast"),
}

ALSO = {"hangs": {COLLECTIVES}}  # The real rank that returned has made no call.


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        *PLANTED.items(),
        *(pytest.param(*item, marks=pytest.mark.slow) for item in PLANTED_FAILURES.items()),
    ],
)
def test_a_planted_disagreement_is_found(name, wanted, pools):
    """By its topic, on its ranks, in words that say what it is."""
    topic, ranks, *words = wanted
    found = both(pools, job("planted", name))
    finding = next(each for each in found.findings if each.topic == topic)
    assert finding.ranks == ranks
    for word in words:
        assert word in finding.text
    assert {each.topic for each in found.findings} - {topic} == ALSO.get(name, set())
    lines = report.text(found)
    assert len(lines) <= 16
    assert lines[-1].startswith("the sides differ: ")


def test_nothing_planted_is_not_found(pools):
    """The same kinds of values and calls, alike: no alarm."""
    assert both(pools, job("planted", "nothing")).findings == []
