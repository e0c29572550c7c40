"""Which frames pytest shows of a failure: the suite's own; see also `tests/pytest_plugin`."""

import pytest

import simrank
from simrank.errors import SimrankError
from simrank.suites.outcomes import users_frames


def test_frames_of_the_library_are_left_out_unless_there_are_no_others():
    """The line of the program is the last one."""
    with pytest.raises(SimrankError) as caught:
        simrank.Context("no such cluster")
    files = {entry.path.name for entry in users_frames(caught)}
    assert files == {"test_outcomes.py"}
    library = [entry for entry in caught.traceback if entry.path.name != "test_outcomes.py"]
    caught.traceback = type(caught.traceback)(library)
    assert users_frames(caught) == caught.traceback
