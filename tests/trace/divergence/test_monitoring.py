"""Python 3.12's monitoring: on while ranks run, beside other tools."""

import sys

import pytest

from simrank.trace.divergence import follow
from tests.trace.divergence.test_follow import found, skipped

pytestmark = pytest.mark.skipif(not follow.is_there(), reason="Python 3.11 has none")
TOOLS = range(6)


def test_other_tools_and_tracers_go_on():
    """Coverage and debuggers see what they have seen."""
    seen = []

    def tracer(frame, *_):
        seen.append(frame.f_code.co_name)

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        diverged_at, _ = found(skipped)
    finally:
        sys.settrace(before)
    assert diverged_at is not None
    assert "skipped" in seen


def test_its_tool_is_given_back():
    """After a run that failed, and nothing is watched any more."""
    before = [sys.monitoring.get_tool(tool) for tool in TOOLS]
    found(skipped)
    assert [sys.monitoring.get_tool(tool) for tool in TOOLS] == before
    assert sys.monitoring.get_local_events(3, skipped.__code__) == 0


def test_nothing_is_said_where_no_tool_is_left():
    """The run goes on as one that nobody follows."""
    taken = [tool for tool in (3, 4) if sys.monitoring.get_tool(tool) is None]
    for tool in taken:
        sys.monitoring.use_tool_id(tool, "test")
    try:
        diverged_at, _ = found(skipped)
    finally:
        for tool in taken:
            sys.monitoring.free_tool_id(tool)
    assert diverged_at is None
