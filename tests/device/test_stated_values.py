"""Values that a user states for unknown ones."""

from simrank.device.stated_values import StatedValues, as_stated


def test_a_line_has_its_own_value():
    """All others have that of the run."""
    stated = StatedValues(0.0, {"train.py:12": 3.0})
    assert [stated.of_line(line) for line in ("train.py:12", "x.py:1", None)] == [3.0, 0.0, 0.0]
    assert as_stated(2.0).of_line("x.py:1") == 2.0
    assert as_stated(None).of_line("x.py:1") is None
    assert as_stated(stated) is stated
