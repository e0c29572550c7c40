"""Tests for suites to import: they check that guards are in place.

from simrank.validate.testing import test_every_test_on_real_ranks_has_an_outer_time_limit
"""

from __future__ import annotations

import pytest

# The tests of a session that run on real processes -> the seconds that each may take in all.
OUTER_LIMITS = pytest.StashKey[dict[str, float]]()


def test_every_test_on_real_ranks_has_an_outer_time_limit(request: pytest.FixtureRequest) -> None:
    """Each has a `timeout` marker that leaves its pool the time to say what the ranks did.

    It catches a plugin that is not loaded, and a limit that fires before the pool's own: that is
    `child_timeout()`, or `--ranks-timeout`, and 30 seconds for a start and an end.
    """
    config = request.config
    if not config.pluginmanager.hasplugin("timeout"):
        pytest.skip("pytest-timeout is not installed: nothing limits a test from outside")
    known = config.stash.get(OUTER_LIMITS, None)
    if known is None:
        assert config.pluginmanager.hasplugin("simrank"), "the plugin of simrank is not loaded"
        pytest.skip("no test runs on real processes: see --ranks-on")
    items = {item.nodeid: item for item in request.session.items}
    wrong = []
    for nodeid, needed_s in known.items():
        marker = items[nodeid].get_closest_marker("timeout") if nodeid in items else None
        given_s = None if marker is None else seconds_of(marker)
        if nodeid in items and (given_s is None or given_s < needed_s):
            wrong.append(f"{nodeid}: {given_s}, expected {needed_s:g} or more")
    assert not wrong, "outer time limits:\n" + "\n".join(wrong)


def seconds_of(marker: pytest.Mark) -> float | None:
    """Return the seconds of a `timeout` marker; None if it has none."""
    given = marker.args[0] if marker.args else marker.kwargs.get("timeout")
    return None if given is None else float(given)
