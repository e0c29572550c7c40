"""Kernel cases on both sides: Triton's interpreter stands where a GPU would."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from simrank.errors import ConfigError
from simrank.validate.compare import kernels
from simrank.validate.compare.kernels import CaseRun, KernelReport, KernelRow, row_of
from simrank.validate.compare.program import MissingError

CASES = str(Path(__file__).with_name("kernel_cases.py"))
HAS_BOTH = find_spec("torch") is not None and find_spec("triton") is not None
needs_both = pytest.mark.skipif(not HAS_BOTH, reason="torch or triton is not installed")


def ran(values, wanted=None, tolerance=1e-5, time_us=1.0):
    return CaseRun([(np.asarray(values), wanted, tolerance)], [("k", time_us)])


def test_each_side_is_held_to_what_was_wanted():
    """By its own tolerance."""
    wanted = np.array([1.0, 2.0])
    good, bad = ran([1.0, 2.0], wanted), ran([1.0, 2.5], wanted)
    assert row_of("a", good, good).ok
    assert row_of("a", bad, good).wrong == ("gpu",)
    assert row_of("a", good, bad).wrong == ("simrank",)
    assert row_of("a", bad, bad).wrong == ("gpu", "simrank")
    assert row_of("a", bad, good).largest_difference == 0.5


def test_without_a_wish_the_sides_are_held_to_each_other():
    """By the bounds of their type; types and shapes count."""
    assert row_of("a", ran([1.0]), ran([1.0 + 1e-9])).ok
    for other in (ran([1.1]), ran([np.nan])):
        assert row_of("a", ran([1.0]), other).wrong == ("apart",)
    for other in (ran([1.0, 1.0]), ran(np.float32([1.0]))):
        assert row_of("a", ran([1.0]), other).error.startswith("the sides have float64 [1] and ")


def test_times_are_summed_over_the_launches_of_a_case():
    """None where nothing was measured."""
    row = row_of("a", CaseRun([], [("k", 2.0), ("k", 3.0)]), CaseRun([], [("k", 4.0)]))
    assert (row.gpu_us, row.simulated_us) == (5.0, 4.0)
    assert row_of("a", CaseRun(), CaseRun()).gpu_us is None


def test_what_a_side_raises_is_its_row():
    """And so is another number of outputs."""
    assert row_of("a", CaseRun(error="ValueError: x"), CaseRun()).error == "gpu: ValueError: x"
    assert row_of("a", CaseRun(), CaseRun(error="ValueError: x")).error == "simrank: ValueError: x"
    assert row_of("a", CaseRun(), ran([1.0])).error == "the sides expect 0 and 1 outputs"


def test_times_of_another_device_are_said_to_be():
    """Below the table."""
    rows = [KernelRow("a", ok=True, gpu_us=2.0, simulated_us=1.5)]
    for is_same in (True, False):
        report = KernelReport("NVIDIA H100", "hgx_h100", is_same, "torch 2", rows)
        lines = list(kernels.lines(report))
        assert any("times are of different devices" in line for line in lines) != is_same
        assert lines[-1] == "1 of 1 runs are right on both sides"


def test_a_file_without_cases_is_refused(tmp_path):
    """With what was expected."""
    (tmp_path / "none_here.py").write_text("x = 1\n")
    with (
        pytest.raises(ConfigError, match="expected RUNS, a dict of names"),
        kernels.cases_of(str(tmp_path / "none_here.py")),
    ):
        pass


@needs_both
@pytest.mark.slow
def test_the_cases_of_a_file_run_on_both_sides():
    """Right ones pass; each kind of disagreement is found."""
    report = kernels.compare_kernels(CASES, device=kernels.INTERPRETER)
    wrong = {row.kernel: row.wrong or row.error for row in report.rows if not row.ok}
    assert wrong == {
        "apart": ("apart",),
        "wanted_wrongly": ("gpu", "simrank"),
        "wrong_on_gpu": ("gpu",),
        "raises": "gpu: ValueError: no such kernel",
        "shape": "the sides have float64 [3] and float64 [4]",
    }
    assert {row.kernel for row in report.rows if row.ok} == {"right", "unwanted"}
    assert all(row.simulated_us > 0 for row in report.rows if row.ok)
    assert not report.is_same


@needs_both
@pytest.mark.slow
def test_without_a_gpu_nothing_is_compared():
    """One line; `simrank compare --kernels` ends with status 4."""
    with pytest.raises(MissingError, match="no GPU was found"):
        kernels.compare_kernels(CASES)


@pytest.mark.skipif(HAS_BOTH, reason="torch and triton are installed")
def test_without_torch_nothing_is_compared():
    """One line, that says what is missing."""
    with pytest.raises(MissingError, match="is not installed"):
        kernels.compare_kernels(CASES)
