"""Units as people write them."""

import pytest

from simrank.config.quantity import Bandwidth, Flops, Size, Time, closest_units

from .clusters import complaint

WRONG = [
    (Bandwidth, "450 GBps", "`450 GB/s`"),
    (Bandwidth, "64 MB/sec", "`64 MB/s`"),
    (Bandwidth, "64 Gbps", "`64 Gb/s`"),
    (Bandwidth, "100 gigabits/s", "`100 Gb/s`"),
    (Bandwidth, "1 gigabyte per second", "`1 GB/s`"),
    (Bandwidth, "64 GiBps", "`64 GiB/s`"),
    (Bandwidth, "450 GB", "`450 GB/s`"),
    (Bandwidth, "64 gb/s", "`64 GB/s` or `64 Gb/s`"),
    (Size, "1 KBytes", "`1 kB`"),
    (Size, "1 kib", "`1 KiB`"),
    (Size, "1 K", "`1 KiB`"),
    (Size, "80 gigabytes", "`80 GB`"),
    (Time, "1 microseconds", "`1 us`"),
    (Time, "3 msec", "`3 ms`"),
    (Flops, "989 TFlops", "`989 TFLOPS`"),
    (Flops, "989 tflop/s", "`989 TFLOPS`"),
]


@pytest.mark.parametrize(("kind", "text", "meant"), WRONG)
def test_a_wrong_unit_is_told_the_right_one(kind, text, meant):
    """What is suggested is read; both, where bits and bytes are possible."""
    import pydantic

    with pytest.raises(pydantic.ValidationError) as caught:
        pydantic.TypeAdapter(kind).validate_python(text)
    (facts,) = caught.value.errors()
    assert facts["ctx"]["to_fix"] == f"write {meant}"
    for suggestion in meant.split("`")[1::2]:
        assert pydantic.TypeAdapter(kind).validate_python(suggestion) > 0


@pytest.mark.parametrize("text", ["1us", "1 us", "1\N{MICRO SIGN}s"])
def test_units_that_are_right_need_no_advice(text):
    """With or without a space."""
    import pydantic

    assert pydantic.TypeAdapter(Time).validate_python(text) == 1_000_000


def test_what_is_no_unit_gets_no_suggestion():
    """Better none than a wrong one."""
    for word in ("furlongs", "GHz", "minutes", "x" * 5000, ""):
        assert closest_units(word) == []


def test_the_message_has_file_line_and_key(tmp_path):
    """Word for word."""
    assert complaint(tmp_path, "450 GB/s", "450 GBps") == (
        "own.yaml:16: links[0].bandwidth: expected a rate with a unit, got 450 GBps\n"
        "  to fix: write `450 GB/s`"
    )
