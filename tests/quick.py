"""Which of many cases the default run has: the rest are slow."""

import pytest


def slow_after(count, cases):
    """Return cases for `parametrize`: all but the first are run by `-m slow` alone."""
    return [
        case if number < count else pytest.param(*_values(case), marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]


def _values(case):
    return case if isinstance(case, tuple) else (case,)
