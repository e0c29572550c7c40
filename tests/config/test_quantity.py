"""Quantities with units, and what is said where one is missing."""

import pytest
from pydantic import TypeAdapter, ValidationError

from simrank.config import bench_config_from_mapping, quantity
from simrank.config.quantity import Bandwidth, Count, Flops, Size, Text, Time

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
    """No spelling leads to a word that nobody knows."""
    assert set(quantity.DTYPE_ALIASES.values()) <= set(quantity.DTYPES)
    assert set(quantity.REDOP_ALIASES.values()) <= set(quantity.REDOPS)
    assert set(quantity.COLLECTIVE_ALIASES.values()) <= set(quantity.COLLECTIVES)
