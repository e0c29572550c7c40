"""Numbers of programs and bytes as text."""

import pytest

from simrank.kernels.machine.number_text import MAX_SHOWN, first_few, ids_text, waiting_text


@pytest.mark.parametrize(
    ("ids", "text"), [([3], "3"), ([0, 1, 2, 3], "0-3"), ([0, 2, 3, 7], "0, 2-3, 7")]
)
def test_neighbours_are_a_range(ids, text):
    """Runs of numbers are written by their ends."""
    assert ids_text(ids) == text


def test_many_are_cut_off():
    """Dots say that there are more than are shown."""
    assert first_few(range(MAX_SHOWN)).endswith(str(MAX_SHOWN - 1))
    assert first_few(range(MAX_SHOWN + 1)).endswith(f"{MAX_SHOWN - 1}, ...")


def test_programs_that_wait_for_one_byte_share_it():
    """The verb and the bytes go by number; values are there where they are known."""
    assert waiting_text({5: 16}, []) == "program 5 waits for a change of byte 16"
    several = waiting_text({0: 0, 1: 16, 2: 16}, ["2 to 1"])
    assert several == "programs 0-2 wait for a change of bytes 0, 16 from 2 to 1"
