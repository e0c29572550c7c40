"""What units people write, and which they mean: `GBps` is GB/s, `microseconds` are us."""

import re

from simrank.units import UNIT_NAMES

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
    """Return the units that a wrong one may stand for: of bits or of bytes, if it says which.

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
