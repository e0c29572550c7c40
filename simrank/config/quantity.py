"""Leaf types of the configuration models: quantities with units, counts, names, choices.

Each is an `Annotated` type whose validator takes what YAML gave and says `expected X` itself, so
that no message of the models depends on pydantic's wording.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from simrank import units
from simrank.config.wires import PerDirection
from simrank.units import UNIT_NAMES

MAX_COUNT = 2**24  # Assumed: more of anything in one cluster is a typing error.
MAX_DEVICES_PER_NODE = 4096  # Assumed: routes inside a node are a table of this number squared.


def reject(
    expected: str, *, got: str | None = None, to_fix: str | None = None, sub: tuple[Any, ...] = ()
) -> PydanticCustomError:
    """Return the error for a value that is not as expected.

    Args:
        expected: What would have been accepted.
        got: What was found, or None for the value itself.
        to_fix: What to write, where that is certain.
        sub: Path of the bad part below the key that is being validated.
    """
    facts = {"expected": expected, "got": got, "to_fix": to_fix, "sub": sub}
    return PydanticCustomError("simrank", "expected {expected}", facts)


def closest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice that the word was most likely meant to be, or None."""
    return next(iter(nearest(word, choices, 1)), None)


def nearest(word: str, choices: Iterable[str], most: int) -> list[str]:
    """Return the choices that resemble an unknown word, the nearest first."""
    return get_close_matches(word.lower(), list(choices), n=most, cutoff=0.65)


def choice_text(choices: Iterable[str]) -> str:
    """Return choices as text, for example `one of a, b, c`."""
    return "one of " + ", ".join(choices)


def hint(word: str, choices: Iterable[str]) -> str | None:
    """Return a suggestion, the choice nearest to an unknown word; None if none is near."""
    near = closest(word, choices)
    return None if near is None else f"write `{near}`"


def _quantity(
    parse: Callable[[str], int], expected: str, example: str, unit: str
) -> Callable[[object], int]:
    """Return a validator of one kind of quantity."""
    parse = lru_cache(maxsize=1024)(parse)  # Thousands of links have a few bandwidths.

    def validate(value: object) -> int:
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise reject(expected, to_fix=_unit_hint(str(value), unit, example, parse))
        if not isinstance(value, str):
            raise reject(expected)
        try:
            return parse(value)
        except ValueError as error:
            hint = _unit_hint(value, unit, example, parse)
            text = str(error).removeprefix("expected ").split(": write the unit")[0]
            raise reject(text.split(", for example")[0], to_fix=hint) from None

    return validate


def _unit_hint(text: str, unit: str, example: str, parse: Callable[[str], int]) -> str | None:
    """Return the correct text for a number without its unit, or with a wrong one, else None."""
    match = re.fullmatch(r"\s*([\d_.]+(?:[eE][+-]?\d+)?)\s*(.*?)\s*", text, re.ASCII | re.DOTALL)
    if match is None:
        return None
    number, written = match.groups()
    if not written:
        candidate = f"{number} {unit}"
        shown = candidate if _is_read_by(parse, candidate) else example
        return f"write the unit, for example `{shown}`"
    candidates = [f"{number} {name}" for name in closest_units(written)]
    meant = [f"`{each}`" for each in candidates if _is_read_by(parse, each)]
    return f"write {' or '.join(meant)}" if meant else None


def _is_read_by(parse: Callable[[str], int], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _quantity_schema(example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "examples": [example]}, mode="validation")


_size = _quantity(units.parse_size, "a size with a unit", "8 MiB", "B")


def _memory(value: object) -> int:
    size = _size(value)
    if size == 0:
        raise reject("a size above 0 B")
    return size


Size = Annotated[int, BeforeValidator(_size), _quantity_schema("8 MiB")]
Memory = Annotated[int, BeforeValidator(_memory), _quantity_schema("80 GiB")]
Bandwidth = Annotated[
    int,
    BeforeValidator(_quantity(units.parse_bandwidth, "a rate with a unit", "450 GB/s", "GB/s")),
    _quantity_schema("450 GB/s"),
]
Time = Annotated[
    int,
    BeforeValidator(_quantity(units.parse_time, "a time with a unit", "1 us", "us")),
    _quantity_schema("1 us"),
]
Flops = Annotated[
    int,
    BeforeValidator(
        _quantity(units.parse_flops, "a rate of arithmetic with a unit", "989 TFLOPS", "TFLOPS")
    ),
    _quantity_schema("989 TFLOPS"),
]

Power = Annotated[
    int,
    BeforeValidator(_quantity(units.parse_power, "a power with a unit", "700 W", "W")),
    _quantity_schema("700 W"),
]


def _per_direction(validate_one: Callable[[object], int]) -> Callable[[object], PerDirection]:
    """Return a validator that takes one quantity for both directions, or a mapping."""

    def validate(value: object) -> PerDirection:
        if isinstance(value, PerDirection):
            return value
        if not isinstance(value, Mapping):
            both = validate_one(value)
            return PerDirection(both, both)
        for key in value:
            if key not in ("forward", "backward"):
                raise reject("forward and backward", got=f"the key {key}", sub=(key,))
        rates = {}
        for key in ("forward", "backward"):
            if key not in value:
                raise reject(f"both forward and backward, without {key}", got="nothing")
            try:
                rates[key] = validate_one(value[key])
            except PydanticCustomError as error:
                facts = error.context or {}
                raise reject(facts["expected"], to_fix=facts["to_fix"], sub=(key,)) from None
        return PerDirection(**rates)

    return validate


BandwidthPerDirection = Annotated[
    PerDirection,
    BeforeValidator(
        _per_direction(_quantity(units.parse_bandwidth, "a rate with a unit", "450 GB/s", "GB/s"))
    ),
    _quantity_schema("450 GB/s"),
]
LatencyPerDirection = Annotated[
    PerDirection,
    BeforeValidator(
        _per_direction(_quantity(units.parse_time, "a time with a unit", "1 us", "us"))
    ),
    _quantity_schema("1 us"),
]


def _whole(minimum: int, maximum: int) -> Callable[[object], int]:
    """Return a validator of whole numbers in a range."""
    expected = f"a whole number from {minimum}"
    if maximum not in (MAX_COUNT, units.MAX_QUANTITY):
        expected += f" to {maximum}"

    def validate(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise reject(expected)
        if value > maximum:
            raise reject(f"a whole number from {minimum} to {maximum}")
        if value < minimum:
            raise reject(expected)
        return value

    return validate


def number_in(minimum: float, maximum: float, expected: str) -> Callable[[object], float]:
    """Return a validator of numbers above a minimum, up to a maximum."""

    def check(value: object) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not minimum < float(value) <= maximum:  # type: ignore[arg-type]
            raise reject(expected)
        return float(value)  # type: ignore[arg-type]

    return check


Count = Annotated[int, BeforeValidator(_whole(1, MAX_COUNT))]
DeviceCount = Annotated[int, BeforeValidator(_whole(1, MAX_DEVICES_PER_NODE))]
CountOrZero = Annotated[int, BeforeValidator(_whole(0, MAX_COUNT))]
Seed = Annotated[int, BeforeValidator(_whole(0, units.MAX_QUANTITY))]
Share = Annotated[float, BeforeValidator(number_in(0, 1, "a number above 0, at most 1"))]
Factor = Annotated[int, BeforeValidator(_whole(2, MAX_COUNT))]


def _text(value: object) -> str:
    if isinstance(value, bool):
        raise reject("text", to_fix="write the word in quotes: YAML reads it as true or false")
    if not isinstance(value, str) or not value.strip():
        raise reject("text")
    return value


def _name(value: object) -> str:
    text = _text(value)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", text, re.ASCII):
        raise reject("a name of letters, digits and _ . - that starts with a letter")
    return text


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise reject("true or false")
    return value


Text = Annotated[str, BeforeValidator(_text)]
Name = Annotated[str, BeforeValidator(_name)]
Flag = Annotated[bool, BeforeValidator(_bool)]


def check_word(value: object, choices: Sequence[str], aliases: Mapping[str, str]) -> str:
    """Return the one of several words that a value spells.

    Args:
        value: What was written.
        choices: The words.
        aliases: Other spellings that are accepted, each with its word.
    """
    if isinstance(value, str) and value in choices:
        return value
    if isinstance(value, str) and value in aliases:
        return aliases[value]
    near = closest(value, [*choices, *aliases]) if isinstance(value, str) else None
    raise reject(choice_text(choices), to_fix=near and f"write `{aliases.get(near, near)}`")


def one_of(choices: Sequence[str], aliases: Mapping[str, str]) -> BeforeValidator:
    """Return a validator that is `check_word`, for `Annotated`."""
    return BeforeValidator(lambda value: check_word(value, choices, aliases))


ALL = "all"  # As nccl-tests' -d all, -o all and -r all.


def words_of(
    choices: tuple[str, ...], aliases: Mapping[str, str], *, example: str, has_all: bool = False
) -> BeforeValidator:
    """Return a validator of one word or a list of words, without repeats, or of `all`."""

    def validate_words(value: object) -> tuple[str, ...]:
        if value == ALL and has_all:
            return choices
        if isinstance(value, str):
            return (check_word(value, choices, aliases),)
        if not isinstance(value, list | tuple) or not value:
            raise reject(f"a list such as [{example}]")
        words = []
        for index, item in enumerate(value):
            try:
                words.append(check_word(item, choices, aliases))
            except PydanticCustomError as error:
                facts = error.context or {}
                raise reject(facts["expected"], to_fix=facts["to_fix"], sub=(index,)) from None
        return tuple(dict.fromkeys(words))

    return BeforeValidator(validate_words)


_read_size = _quantity(units.parse_size, "a size with a unit", "8 MiB", "B")


def read_size(value: object, sub: tuple[Any, ...]) -> int:
    """Return a size in bytes; a complaint points to `sub` below the key that is validated."""
    try:
        return _read_size(value)
    except PydanticCustomError as error:
        facts = error.context or {}
        raise reject(facts["expected"], to_fix=facts["to_fix"], sub=sub) from None


# ---- What units people write, and which they mean: `GBps` is GB/s, `microseconds` are us ----

# Words in the order in which they are replaced; "x" is a letter B that may be bits or bytes.
_WORDS = (
    (r"\s+", ""),
    (r"per(?=s)", "/"),
    (r"seconds?|secs?", "s"),
    (r"(?<=b|t)s?ps$|(?<=bits|ytes)ps$", "/s"),
    (r"(?<=op)s?(?:/s|ps)$", "s"),
    (r"(?<=op)$", "s"),
    (r"kilo", "k"),
    (r"mega", "m"),
    (r"giga", "g"),
    (r"tera", "t"),
    (r"peta", "p"),
    (r"kibi", "ki"),
    (r"mebi", "mi"),
    (r"gibi", "gi"),
    (r"tebi", "ti"),
    (r"micro|\N{MICRO SIGN}|\N{GREEK SMALL LETTER MU}", "u"),
    (r"milli", "m"),
    (r"nano", "n"),
    (r"pico", "p"),
    (r"bytes?", "x"),
    (r"bits?", "x"),
    (r"b", "x"),
)


def closest_units(written: str) -> list[str]:
    """Return the units that are closest to a wrong one, of bits or bytes if it says which.

    Args:
        written: For example `GBps` or `MB/sec`. A rate may lack its `/s`.
    """
    plain, letter = _plain(written), _letter(written)
    found: list[str] = []
    for wanted in (plain, f"{plain}/s", f"{plain}ix"):
        names = [name for name in UNIT_NAMES if _plain(name) == wanted and "bit" not in name]
        found += _preferred([name for name in names if _letter(name) == letter] or names)
    return list(dict.fromkeys(found))


def _preferred(names: list[str]) -> list[str]:
    """Return names without `K` for thousands, and without `FLOP/s` beside `FLOPS`."""
    usual = [name for name in names if not name.startswith("KB") and "FLOP/s" not in name]
    return usual or names


def _letter(unit: str) -> str:
    """Return B for bytes, b for bits, or nothing where a unit says neither."""
    lower = unit.lower()
    if "byte" in lower or "bit" in lower:
        return "B" if "byte" in lower else "b"
    if "B" in unit:
        return "B"
    return "b" if "b" in unit and any(letter.isupper() for letter in unit) else ""


def _plain(unit: str) -> str:
    plain = unit.lower()
    for pattern, replacement in _WORDS:
        plain = re.sub(pattern, replacement, plain)
    return plain


# ---- names that configurations use for dtypes, reduce operations and collectives ----

# What both NCCL and simrank have, under torch's names; nccl-tests' spellings are accepted too.
DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int8",
    "uint8",
    "int32",
    "int64",
)
DTYPE_ALIASES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "f8e4m3": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "fp8_e5m2": "float8_e5m2",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "bf16": "bfloat16",
}
REDOPS = ("sum", "prod", "min", "max", "avg")
REDOP_ALIASES = {"product": "prod"}
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "all_to_all_v",
    "gather",
    "scatter",
    "sendrecv",
)
COLLECTIVE_ALIASES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "bcast": "broadcast",
    "alltoall": "all_to_all",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "alltoallv": "all_to_all_v",
    "all_to_allv": "all_to_all_v",
    "send_recv": "sendrecv",
}

# The keys of NCCL's tables: architecture, link between devices, vendor of the CPU.
NCCL_ARCHITECTURES = ("volta", "ampere", "hopper", "blackwell")
NCCL_WIRES = ("nvlink", "pci")
NCCL_HOSTS = ("intel", "amd")
NCCL_NETWORKS = ("ib", "roce", "efa", "tcpx", "tcpxo", "slingshot")
# What it has to choose from.
NCCL_ALGORITHMS = (
    "tree",
    "ring",
    "collnet_direct",
    "collnet_chain",
    "nvls",
    "nvls_tree",
    "pat",
)
NCCL_PROTOCOLS = ("LL", "LL128", "Simple")
# As NCCL_ALGO and NCCL_PROTO are written, and NCCL's log prints them.
_OF_NCCL = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
NCCL_ALGORITHM_ALIASES = dict(zip(_OF_NCCL, NCCL_ALGORITHMS, strict=True)) | {
    each.upper(): each for each in NCCL_ALGORITHMS
}
NCCL_PROTOCOL_ALIASES = {"ll": "LL", "ll128": "LL128", "simple": "Simple", "SIMPLE": "Simple"}
AlgorithmNames = Annotated[
    tuple[str, ...] | None, words_of(NCCL_ALGORITHMS, NCCL_ALGORITHM_ALIASES, example="ring")
]
ProtocolNames = Annotated[
    tuple[str, ...] | None, words_of(NCCL_PROTOCOLS, NCCL_PROTOCOL_ALIASES, example="Simple")
]

DtypeName = Annotated[str, one_of(DTYPES, DTYPE_ALIASES)]
RedopName = Annotated[str, one_of(REDOPS, REDOP_ALIASES)]
CollectiveName = Annotated[str, one_of(COLLECTIVES, COLLECTIVE_ALIASES)]
# Columns of the tables in configs/gemm/rows and configs/attention/rows.
MEASURED_DEVICES = ("a100_sxm", "b200_sxm", "b300_sxm", "gb200", "h100_sxm", "l40s", "mi355x")
