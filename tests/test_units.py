"""Quantities with units."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simrank import units


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("8 B", 8),
        ("8B", 8),
        ("1 kB", 1000),
        ("1 KB", 1000),
        ("1.5 KiB", 1536),
        ("4 MiB", 4 * 2**20),
        ("80 GB", 80 * 10**9),
        ("1_000 B", 1000),
        ("1e3 B", 1000),
        ("8 TiB", 8 * 2**40),
    ],
)
def test_parse_size_knows_decimal_and_binary_prefixes(text, size_bytes):
    """Prefixes with an i are powers of 1024, those without are powers of 1000."""
    assert units.parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("450 GB/s", 450 * 10**9),
        ("400 Gb/s", 50 * 10**9),
        ("400 Gbit/s", 50 * 10**9),
        ("1 GiB/s", 2**30),
        ("2.9 TB/s", 2_900_000_000_000),
        ("450e9 B/s", 450 * 10**9),
    ],
)
def test_parse_bandwidth_knows_bytes_and_bits(text, bytes_per_s):
    """A small b is a bit, a large B a byte."""
    assert units.parse_bandwidth(text) == bytes_per_s


@pytest.mark.parametrize(
    ("text", "time_ps"),
    [
        ("1 us", 10**6),
        ("0.6 us", 600_000),
        ("1 \N{MICRO SIGN}s", 10**6),
        ("3 ns", 3000),
        ("0 s", 0),
        ("2 ms", 2 * 10**9),
        ("0.1 ps", 1),
    ],
)
def test_parse_time_rounds_up_to_picoseconds(text, time_ps):
    """A time below one picosecond becomes one, zero stays zero."""
    assert units.parse_time(text) == time_ps


def test_parse_power_reads_watts():
    """And what is a thousand times more or less."""
    assert units.parse_power("0.7 kW") == units.parse_power("700 W") == 700
    with pytest.raises(ValueError, match="expected a power"):
        units.parse_power("700")


def test_parse_flops_reads_both_spellings():
    """TFLOPS and TFLOP/s are the same rate."""
    assert units.parse_flops("989 TFLOPS") == units.parse_flops("989 TFLOP/s") == 989 * 10**12


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("8", 8), ("8G", 8 * 2**30), ("32M", 32 * 2**20), ("1k", 1024), ("8 GB", 8 * 10**9)],
)
def test_parse_size_nccl_counts_in_1024(text, size_bytes):
    """K, M and G are powers of 1024 on the command line, as in nccl-tests."""
    assert units.parse_size_nccl(text) == size_bytes


@pytest.mark.parametrize(
    "parse", [units.parse_size, units.parse_bandwidth, units.parse_time, units.parse_flops]
)
@pytest.mark.parametrize(
    "text",
    ["450", "450e9", "", "GB", "-1 B", "-1 us", "-3 GB/s", "1 parsec", "nan us", "inf B", "1e99 s"],
)
def test_parsers_refuse_what_is_no_quantity(parse, text):
    """A missing, unknown or foreign unit and a negative number raise ValueError with words."""
    with pytest.raises(ValueError, match="expected"):
        parse(text)


@pytest.mark.parametrize("text", ["0 GB/s", "0.0 B/s", "0.1 B/s"])
def test_a_rate_of_zero_is_refused(text):
    """A link that moves nothing is no link."""
    with pytest.raises(ValueError, match="at least 1"):
        units.parse_bandwidth(text)


def test_a_missing_unit_is_named_with_an_example():
    """The message says what to write."""
    with pytest.raises(ValueError, match=r"write the unit, for example `450 GB/s`"):
        units.parse_bandwidth("450")


def test_half_a_byte_is_no_size():
    """Sizes are whole numbers of bytes."""
    with pytest.raises(ValueError, match="whole number"):
        units.parse_size("0.5 B")


@given(
    size_bytes=st.integers(0, 2**63 - 1),
    bandwidth_bytes_per_s=st.integers(1, 10**15),
)
def test_transfer_ps_is_the_exact_time_rounded_up(size_bytes, bandwidth_bytes_per_s):
    """No float error, whatever the size: the result is the ceiling of the exact quotient."""
    exact = Fraction(size_bytes * units.PS_PER_S, bandwidth_bytes_per_s)

    assert units.transfer_ps(size_bytes, bandwidth_bytes_per_s) == math.ceil(exact)


@given(seconds=st.floats(0, 1e6))
def test_ceil_ps_never_shortens_a_cost(seconds):
    """A time is at least the cost, and less than one picosecond above it."""
    assert 0 <= units.ceil_ps(seconds) - Fraction(seconds) * units.PS_PER_S < 1


@pytest.mark.parametrize("seconds", [-1.0, math.inf, math.nan])
def test_ceil_ps_refuses_what_is_no_cost(seconds):
    """Negative, infinite and undefined costs raise."""
    with pytest.raises(ValueError, match="finite"):
        units.ceil_ps(seconds)


@given(size_bytes=st.integers(0, 2**60))
def test_format_size_reads_back_exactly(size_bytes):
    """What is printed can be pasted into a configuration."""
    assert units.parse_size(units.format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("time_ps", "text"),
    [
        (0, "0.000 us"),
        (500, "500 ps"),
        (1500, "1.500 ns"),
        (12_500_000, "12.500 us"),
        (2_000_000_000, "2.000 ms"),
        (3 * 10**12, "3.000 s"),
    ],
)
def test_format_time_picks_a_readable_unit(time_ps, text):
    """Three decimals in the largest fitting unit."""
    assert units.format_time(time_ps) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(376e9, "376 GB/s"), (2.9e12, "2.9 TB/s"), (12.0, "12 B/s")]
)
def test_format_bandwidth_picks_a_readable_unit(rate, text):
    """Decimal prefixes, as data sheets use them."""
    assert units.format_bandwidth(rate) == text
