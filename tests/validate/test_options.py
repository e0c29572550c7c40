"""One place for wall-clock limits; slow machines get longer ones."""

from __future__ import annotations

import pytest

from simrank.errors import ConfigError
from simrank.validate import Limits, WorkerPool, child_timeout, outer_timeout
from simrank.validate.options import timeout_factor
from simrank.validate.spawn import _pool


def test_a_case_has_90_seconds_unless_its_pool_or_its_call_says_otherwise():
    """As in TransformerEngine's pool; `spawn` has the same."""
    assert WorkerPool(1, None).limits.case_s == _pool(1).limits.case_s == 90.0
    assert WorkerPool(1, None, timeout=7).limits.case_s == 7.0


def test_the_outer_limit_is_a_case_and_a_margin():
    """It does not grow with the number of workers: they run side by side."""
    assert Limits(case_s=10, margin_s=5).outer_s == 15


@pytest.mark.parametrize(
    ("name", "value", "factor"),
    [
        ("SIMRANK_TIMEOUT_FACTOR", "3", 3.0),
        ("CUDA_PYTHON_UNDER_SANITIZER", "1", 4.0),
        ("CUDA_INJECTION64_PATH", "/opt/compute-sanitizer/libsanitizer.so", 4.0),
        ("LD_PRELOAD", "/opt/compute-sanitizer/libsanitizer-public.so", 4.0),
        ("CUDA_PYTHON_UNDER_SANITIZER", "0", 1.0),
    ],
)
def test_a_sanitizer_or_a_factor_makes_limits_longer(monkeypatch, name, value, factor):
    """cuda-python: 30 s, and 120 s under a sanitizer; a test has 30 s more."""
    monkeypatch.setenv(name, value)
    assert timeout_factor() == factor
    assert child_timeout() == 30 * factor
    assert outer_timeout() == child_timeout() + 30
    assert Limits(case_s=2).scaled().case_s == 2 * factor


@pytest.mark.parametrize("value", ["", "fast", "0", "-1", "nan", "inf"])
def test_a_factor_that_is_none_is_refused(monkeypatch, value):
    """By name."""
    monkeypatch.setenv("SIMRANK_TIMEOUT_FACTOR", value)
    with pytest.raises(ConfigError, match="SIMRANK_TIMEOUT_FACTOR: expected a positive number"):
        timeout_factor()
