"""Quantities with units, and what is said where one is missing."""

import pytest
from pydantic import TypeAdapter, ValidationError

from simrank.config import bench_config_from_mapping, quantity
from simrank.config.quantity import Bandwidth, Count, Flops, Size, Text, Time, closest_units

from .clusters import complaint


def test_a_bare_number_is_told_its_unit(tmp_path):
    """The example of the style guide, word for word."""
    assert complaint(tmp_path, "450 GB/s", "450") == (
        "own.yaml:16: links[0].bandwidth: expected a rate with a unit, got 450\n"
        "  to fix: write the unit, for example `450 GB/s`"
    )


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Size, "8 KiB", 8192),
        (Size, "8 kB", 8000),
        (Bandwidth, "450 GB/s", 450 * 10**9),
        (Bandwidth, "400 Gb/s", 50 * 10**9),
        (Time, "1.5 us", 1_500_000),
        (Flops, "2 TFLOPS", 2 * 10**12),
    ],
)
def test_a_quantity_becomes_an_exact_integer(kind, text, value):
    """Of bytes, bytes per second, picoseconds or operations per second."""
    assert TypeAdapter(kind).validate_python(text) == value


@pytest.mark.parametrize("value", [True, 0, -1, 1.0, "3", None])
def test_a_count_is_a_whole_number_from_one(value):
    """True is no number, and nothing is converted in silence."""
    with pytest.raises(ValidationError, match="expected a whole number from 1"):
        TypeAdapter(Count).validate_python(value)


def test_a_word_that_yaml_reads_as_a_truth_value_is_told_to_be_quoted():
    """`name: no` is False in YAML."""
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Text).validate_python(False)
    (problem,) = caught.value.errors()
    assert problem["ctx"]["to_fix"] == "write the word in quotes: YAML reads it as true or false"


# ---- names of dtypes, reduce operations and collectives ----


def test_nccl_tests_spellings_become_torchs():
    """What users type from habit works."""
    config = bench_config_from_mapping(
        {
            "cluster": "hgx_h100",
            "collectives": ["alltoall", "allreduce"],
            "dtypes": ["half", "float"],
        }
    )

    assert config.collectives == ("all_to_all", "all_reduce")
    assert config.dtypes == ("float16", "float32")


def test_an_alias_stands_for_a_name_that_exists():
    """No spelling leads to an unknown word."""
    assert set(quantity.DTYPE_ALIASES.values()) <= set(quantity.DTYPES)
    assert set(quantity.REDOP_ALIASES.values()) <= set(quantity.REDOPS)
    assert set(quantity.COLLECTIVE_ALIASES.values()) <= set(quantity.COLLECTIVES)


# ---- units as people write them ----

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
