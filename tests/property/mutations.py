"""Mutated configurations: what a slip of the hand, or of an editor, makes of a good file."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FAULTS = """\
faults:
  - {kill: 3, at: 2 ms}
  - {kill: 2, at_collective: 5}
  - {slow: [1, 2], factor: 1.5, from: 1 ms, until: 3 ms}
  - {delay_arrivals: all, up_to: 20 us, probability: 0.1}
  - {drop_link: "gpu3 -> nvswitch", at: 1 ms}
  - {slow_link: "node 0: gpu3 <-> nvswitch", factor: 4}
"""
BENCH = """\
clusters: [hgx_h100, {name: h100_ib, nodes: 2}]
num_ranks: [4, 8]
collectives: [all_reduce, broadcast, sendrecv]
algorithms: {auto: {}, ring: {num_channels: 2}}
dtypes: [float32, bfloat16]
redops: all
root: 1
sizes: {from: 8 B, to: 1 MiB, factor: 8}
iterations: {warmup: 1, timed: 5, blocking: false}
average: max
in_place: both
check: true
seed: 7
"""
WORDS = [
    "450 GBps", "64 MB/sec", "1us", "1", "-1", "0", "1e999", "9" * 40, "0x" + "f" * 400, "~", "no",
    "[]", "{}", "[[]]", "''", "' '", "gpu0", "each gpu", "same gpu", "gpu0..3", "gpu0..99999999",
    "nvswitch", "hgx_h100", "nope", "a" * 5000, "!!python/name:os.system", "*x", "&x 1", "<<",
    "2026-99-99", "1:30", ".nan", ".inf", "0 B", "3 s", "\u00fcber", "[1, [2, {a: b}]]", "{1: 2}",
    '"a\\0b"', '"\\e[31m"', "@", "`", "%", "? a", "- b", "450 GB/s", "all", "both", "./", "x.csv",
    "[" * 150 + "]" * 150, "{a: " * 150 + "1" + "}" * 150,
]  # fmt: skip
CONTROLS = "\x00\x07\x08\x1b\x7f\ufeff\ufffe\t\u2028"


@cache
def originals() -> list[str]:
    """Return the text of good files of each kind."""
    shipped = sorted((ROOT / "configs").glob("*/*.yaml")) + sorted(ROOT.glob("benches/*.yaml"))
    return [*(path.read_text(encoding="utf-8") for path in shipped), FAULTS, BENCH]


def mutated(number: int) -> str:
    """Return the mutated file of a number: one to three things are wrong with it."""
    chance = random.Random(number)
    texts = originals()
    text = texts[number % len(texts)]
    for _ in range(chance.randint(1, 3)):
        change = chance.choice([_tree, _tree, _line, _letters, _words])
        text = change(text, chance)
    return text


def _tree(text: str, chance: random.Random) -> str:
    """Change the data: delete, repeat, swap, retype or nest a part of it."""
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    places = list(_places(data))
    if not places:
        return text
    parent, key = chance.choice(places)
    other_parent, other_key = chance.choice(places)
    match chance.randint(0, 4):
        case 0:
            del parent[key]
        case 1:
            parent[key] = [parent[key], parent[key]]
        case 2:
            value = other_parent[other_key]
            parent[key], other_parent[other_key] = yaml.safe_load(yaml.safe_dump(value)), 1
        case 3:
            parent[key] = chance.choice([None, True, -1, 2**70, 1.5, "x", "", [], {}, {"a": 1}])
        case _:
            for _ in range(chance.choice([1, 3, 200])):
                parent[key] = {"a": parent[key]} if chance.random() < 0.5 else [parent[key]]
    try:
        return yaml.safe_dump(data, sort_keys=False)
    except RecursionError:
        return text


def _places(data: Any) -> Any:
    """Yield (container, key) for every part of some data."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in list(items):
        yield data, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _line(text: str, chance: random.Random) -> str:
    """Delete, repeat, swap or shift a line."""
    lines = text.splitlines(keepends=True) or [""]
    index, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    match chance.randint(0, 4):
        case 0:
            del lines[index]
        case 1:
            lines.insert(other, lines[index])
        case 2:
            lines[index], lines[other] = lines[other], lines[index]
        case 3:
            lines[index] = " " * chance.randint(1, 5) + lines[index]
        case _:
            lines[index] = "\t" + lines[index].lstrip()
    return "".join(lines)


def _letters(text: str, chance: random.Random) -> str:
    """Delete, repeat or swap letters, or put a control character between them."""
    index = chance.randrange(len(text) + 1)
    match chance.randint(0, 3):
        case 0:
            return text[:index] + text[index + chance.randint(1, 4) :]
        case 1:
            return text[:index] + text[index : index + 3] * 2 + text[index + 3 :]
        case 2:
            return text[:index] + text[index : index + 2][::-1] + text[index + 2 :]
        case _:
            return text[:index] + chance.choice(CONTROLS) + text[index:]


def _words(text: str, chance: random.Random) -> str:
    """Put another word in the place of one: other units, other types, other names."""
    words = text.split(" ")
    words[chance.randrange(len(words))] = chance.choice(WORDS)
    return " ".join(words)
