"""The result: what was measured beside what was predicted."""

from __future__ import annotations

import hashlib
import json
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORMAT = "simrank kit result"
VALUES = "values"  # The part of the predictions that no device changes.
OTHERS = ("MIG", "PCIE", "NVL", "MAX")  # In names of devices that are no modules.
SAME_SMS = 0.05
SLOW = 1.5  # Times the median pair.
CLOSE = 1e-3  # Of values of kernels, whose order of sums differs.


def sha256(text: str) -> str:
    """Return the hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def hash_of_parts(hashes: Mapping[str, str]) -> str:
    """Return the hash over the hashes of the parts of predictions."""
    return sha256("\n".join(f"{name} {hashes[name]}" for name in sorted(hashes)))


def text_of(document: object) -> str:
    """Return a document as the text that is hashed."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def chosen(predictions: Mapping[str, Any], device: str, num_sms: int = 0) -> str:
    """Return the cluster of predictions whose device this is; "" if there is none.

    A part of a GPU (MIG), and a card where the cluster has modules, are other devices.
    """
    words = device.upper().replace("-", " ").split()
    if set(words) & set(OTHERS):
        return ""
    for name, each in predictions.items():
        if name != VALUES and f" {each['models'][0]} " in f" {' '.join(words)} ":
            is_same = not num_sms or abs(num_sms - each["num_sms"]) <= SAME_SMS * each["num_sms"]
            return name if is_same else ""
    return ""


def merged(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with the parts of ranks as one row, in the order of ranks."""
    found: list[dict[str, Any]] = []
    whole: dict[tuple[str, str], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row.get("rank", 0)):
        if row["kind"] != "part":
            found.append(dict(row))
            continue
        key = row["phase"], row["name"]
        if key not in whole:
            whole[key] = {"kind": "value", "phase": key[0], "name": key[1], "ranks": []}
            found.append(whole[key])
        whole[key]["ranks"].append({"values": row["values"], "calls": row["calls"]})
    return found


def differences(values: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the values, orders of calls and endings that are not those of the predictions."""
    found = []
    for row in rows:
        known = values.get(f"{row['phase']}: {row.get('name')}")
        if row["kind"] != "value" or known is None:
            continue
        if "sample" in row:
            if not row["is_right"]:
                found.append(f"kernel {row['name']}: wrong by {row['error']} of its largest value")
            elif not alike(row["sample"], known["sample"]):
                found.append(f"kernel {row['name']}: other values than predicted")
            continue
        for rank, (mine, theirs) in enumerate(zip(row["ranks"], known["ranks"])):
            is_close = row["phase"] == "own program" and alike(mine["values"], theirs["values"])
            if mine != theirs and not is_close:
                what = "values" if mine["values"] != theirs["values"] else "calls"
                found.append(f"{row['phase']}, {row['name']}: other {what} on rank {rank}")
                break
    return found


def other_hangs(values: Mapping[str, Any], hangs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the programs that ended, or that hang elsewhere than predicted."""
    found = []
    for each in hangs:
        known = values.get(f"hangs: {each['name']}")
        if not each["hung"]:
            found.append(f"{each['name']}: ended without an error")
        elif known is not None and any(each[key] != known[key] for key in ("calls", "ended")):
            found.append(f"{each['name']}: other calls, or other ranks wait")
    return found


def notes_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the items that were left out, with the reason."""
    return [f"{row['phase']}: {row['text']}" for row in rows if row["kind"] == "note"]


def alike(mine: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Return whether samples are equal but for rounding."""
    texts = [[each for each in both if isinstance(each, str)] for both in (mine, theirs)]
    if len(mine) != len(theirs) or any(texts):  # With `nan` or `inf`: the same ones.
        return list(mine) == list(theirs)
    large = max(map(abs, theirs), default=0.0) or 1.0
    return all(abs(a - b) <= CLOSE * large for a, b in zip(mine, theirs))


def hang_of(rows: Sequence[Mapping[str, Any]], ranks: int) -> dict[str, Any]:
    """Return the calls of each rank of a program that hangs, and the ranks that ended."""
    calls = [
        [r["call"] for r in rows if r["kind"] == "call" and r["rank"] == k] for k in range(ranks)
    ]
    ended = sorted(row["rank"] for row in rows if row["kind"] == "end")
    return {"calls": calls, "ended": ended}


def flat(times: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return predicted times by phase and name, of which those of several sizes share a line."""
    found = {}
    for name, each in times.items():
        many = each.items() if isinstance(each, dict) else [("", each)]
        found.update({f"{name}, {size}" if size else name: known for size, known in many})
    return found


def slow_pairs(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the pairs of GPUs whose messages take much longer than those of most."""
    return [
        f"GPU {pair}, {row['name']}: {time_us / row['time_us']:.2g} times the median"
        for row in rows
        if row["kind"] == "time" and row["phase"] == "pairs"
        for pair, time_us in row["each_us"].items()
        if time_us > SLOW * row["time_us"]
    ]


def summary(times: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line per phase: rows, measured over predicted, and the share in the intervals."""
    by_phase: dict[str, list[tuple[float, bool | None]]] = {}
    for row in rows:
        known = times.get(f"{row['phase']}: {row['name']}") if row["kind"] == "time" else None
        if known is not None:
            inside = known[1] <= row["time_us"] <= known[2] if len(known) > 1 else None
            by_phase.setdefault(row["phase"], []).append((row["time_us"] / known[0], inside))
    lines = []
    for phase, found in by_phase.items():
        ratios = sorted(ratio for ratio, _ in found)
        known_ones = [inside for _, inside in found if inside is not None]
        share = ""
        if known_ones:
            share = f"; {sum(known_ones)} of the {len(known_ones)} with an interval are inside"
        lines.append(
            f"{phase}: {len(found)} items, measured / predicted: median {median(ratios):.3g}, "
            f"{ratios[0]:.3g} to {ratios[-1]:.3g}{share}"
        )
    return lines + slow_pairs(rows)
