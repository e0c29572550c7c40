"""Torch programs of which some ranks represent others."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.quick import slow_after

if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped")  # torch's own.
PROGRAMS = Path(__file__).parent / "folded_programs.py"


@pytest.fixture
def run(cli):
    """Run a program; return its steps, times and memory of its ranks, and standard error."""

    def run_kind(kind, *options):
        options = ["--nnodes", "2", "--shape-only", "--unknown", "0", *options]
        status, out, err = cli("run", "--cluster", "h100_ib", *options, PROGRAMS, kind)
        assert status == 0, err
        lines = [line for line in err.splitlines() if line.startswith(("simulated", "  rank"))]
        return [line for line in out.splitlines() if line.startswith("[rank0]: step")], lines, err

    return run_kind


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("fsdp", "1 of 16 ranks run (folded: world 16)"),
        ("hsdp", "2 of 16 ranks run (folded: shard 8)"),
        ("tensor", "1 of 16 ranks run (folded: dp 4, tp 4)"),
        ("pipeline", "4 of 16 ranks run (folded: dp 4)"),
    ],
)
def test_steps_and_memory_are_those_of_all_ranks(run, kind, found):
    """To the picosecond and to the byte; which axes are alike is found."""
    steps, lines, err = run(kind)
    assert f"simrank: {found}" in err
    assert (steps, lines) == run(kind, "--fold", "none")[:2]


def test_a_rank_that_prints_its_loss_runs_for_itself(run):
    """Broadcasts at the start end one by one: the whole differs by that, the steps do not."""
    steps, _, err = run("ddp")
    assert "the first rank along world runs for itself" in err
    assert "2 of 16 ranks run (folded: world 16)" in err
    assert steps == run("ddp", "--fold", "none")[0]


FAULTS = {
    "a slow rank": "{slow: 5, factor: 1.5}",
    "slow ranks for a while": "{slow: [9, 10], factor: 4, from: 100 us, until: 1 ms}",
    "a slow link": '{slow_link: "node 1: gpu3 <-> nvswitch", factor: 4}',
    "a slow card": '{slow_link: "node 1: nic3 <-> rail3", factor: 8}',
    "a late rank": "{delay_arrivals: 7, by: 50 us}",
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["fsdp", "tensor"])
@pytest.mark.parametrize("nodes", slow_after(0, [2, 8]))
def test_faulty_ranks_run_beside_representatives(cli, tmp_path, kind, fault, nodes):
    """Times and memory are those of all ranks."""
    (tmp_path / "faults.yaml").write_text(f"faults: [{FAULTS[fault]}]")
    words = ["--cluster", "h100_ib", "--nnodes", nodes, "--shape-only", "--unknown", "0"]
    words += ["--faults", tmp_path / "faults.yaml"]
    found = []
    for fold in ("auto", "none"):
        status, out, err = cli("run", *words, "--fold", fold, PROGRAMS, kind)
        assert status == 0, err
        steps = [line for line in out.splitlines() if line.startswith("[rank0]: step")]
        lines = [line for line in err.splitlines() if line.startswith(("simulated", "  rank"))]
        found.append((steps, lines))
        if fold == "auto":
            assert "beside representatives, for the faults" in err
            assert "ranks run (folded" in err
    assert found[0] == found[1]


RANK_DEPENDENT = PROGRAMS.with_name("rank_dependent_programs.py")
CASES = re.findall(r"^def (\w+)\(\):", RANK_DEPENDENT.read_text(), re.MULTILINE)[2:]
FOLDED = [
    "alike", "printing", "late_skip", "late_leak", "late_crash", "early_crash",
    "late_work_of_first", "modulo", "late_modulo", "mesh_coordinate", "mesh_local_rank", "text",
    "dictionary", "late_set", "pattern", "sleeping", "mismatch", "quarters",
]  # fmt: skip
SAID = {"many_values": "compares ranks with many values", "shards": "taken as rank 0"}


@pytest.fixture
def outcome(cli):
    """Run a program; return what it takes and finds, by rank, and standard error."""

    def run_kind(kind, *options):
        words = ["--cluster", "h100_ib", "--nnodes", "2", "--shape-only", *options]
        status, _, err = cli("run", *words, RANK_DEPENDENT, kind)
        took = [line for line in err.splitlines() if line.startswith(("simulated", "  rank"))]
        text = re.sub(r"\d+ rank\(s\)", "ranks", err)
        failed = re.findall(r"^(?:deadlock|\w+Error|-- Process).*", text, re.MULTILINE)
        return (status, failed[:2], [] if failed else took), err

    return run_kind


@pytest.mark.parametrize("kind", slow_after(2, CASES))
def test_a_program_whose_ranks_differ_takes_the_same_folded_and_whole(outcome, kind):
    """Times, peaks, findings and failures; or the ranks that may differ are named."""
    folded, err = outcome(kind)
    whole, _ = outcome(kind, "--fold", "none")
    if kind in SAID:
        assert SAID[kind] in err
    else:
        assert folded == whole
    ends_folded = "of 16 ranks run (folded" in err and "all ranks run" not in err
    assert ends_folded == (kind in FOLDED or kind in SAID)
