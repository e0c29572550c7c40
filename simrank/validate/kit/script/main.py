"""The run: phases one after the other, each in processes of its own."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrank.validate.kit.script.children import Done, end_with_parent, run_phase
from simrank.validate.kit.script.machine import clean
from simrank.validate.kit.script.nccl_tests import NCCL_TESTS, nccl_tests
from simrank.validate.kit.script.own import OWN
from simrank.validate.kit.script.programs import HANGS
from simrank.validate.kit.script.result import (
    FORMAT,
    VALUES,
    chosen,
    differences,
    flat,
    hang_of,
    hash_of_parts,
    merged,
    notes_of,
    other_hangs,
    sha256,
    summary,
    text_of,
)
from simrank.validate.kit.script.worker import work

if TYPE_CHECKING:
    from collections.abc import Iterator

KIT: dict[str, str] = {}  # What `simrank compare --kit` writes: version, hash.
PARTS: dict[str, str] = {}  # Likewise the predictions, as texts.

OK, FAILED, USAGE, MISSING = 0, 1, 2, 4
LIMIT_S = 300.0
# Seconds of each phase; the whole ends at the limit of all.
ALONE = {
    "launches": 30,
    "copies": 30,
    "products": 60,
    "attention": 30,
    "kernels": 60,
    "own kernels": 60,
}
TOGETHER_S = {"collectives": 60, "pairs": 40, "programs": 40, "own program": 60}
HANG_S = 12.0  # Of each program that hangs, once all its ranks are ready.
START_HANG_S = 60.0  # Until they are.
PHASE_NAMES = (*ALONE, *TOGETHER_S, NCCL_TESTS, "hangs")
LEAST_LIMIT_S = 30.0
LEAST_S = 10.0  # With less left, no phase is begun.


def main(words: list[str]) -> int:
    """Run the kit; return its exit status."""
    given = parser().parse_args(words)
    if not given.worker and (given.limit < LEAST_LIMIT_S or given.gpus < 0):
        print(f"kit: expected --limit of {LEAST_LIMIT_S:g} s or more, and --gpus of 1 or more")
        return USAGE
    unknown = {each for each in given.only.split(",") if each} - set(PHASE_NAMES)
    if unknown:
        print(
            f"kit: no phase {', '.join(sorted(unknown))}; expected some of {', '.join(PHASE_NAMES)}"
        )
        return USAGE
    if given.worker:
        if given.parent:
            end_with_parent(given.parent, given.alarm)
        to = Path(given.to) if given.to else None
        work(given.worker, to, given.limit, is_cold=given.cold)
        return OK
    if os.name != "posix" or find_spec("torch") is None:
        print("kit: it needs Linux and torch; to fix: run it in the environment of your programs")
        return MISSING
    if globals()["torch"] is None:  # In the joined script, where its import failed.
        print("kit: torch cannot be imported; to fix: python -c 'import torch' says why")
        return MISSING
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, stopped)
    return Run(given).run()


def stopped(_number: int, _frame: object) -> None:
    """End as by Ctrl-C: workers are ended, and the result is written."""
    raise KeyboardInterrupt


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    made = argparse.ArgumentParser(
        prog="kit.py",
        description="Measure this machine's GPUs, and write what was measured beside what simrank "
        "predicted. It sends nothing, and reads no file of yours.",
        epilog="exit status: 0 no phase failed; 1 one did, the rest is written; 2 bad "
        "usage; 4 torch or GPUs are missing",
    )
    made.add_argument("--gpus", type=int, default=0, help="GPUs to use [all, at most 8]")
    made.add_argument(
        "--limit", type=float, default=LIMIT_S, help="seconds in all, of each phase its share [300]"
    )
    made.add_argument("--only", default="", help="phases, with commas between them [all]")
    made.add_argument("--out", default="kit.json", help="file to write [kit.json]")
    made.add_argument("--hang-limit", type=float, default=HANG_S, help="seconds of a hang [12]")
    made.add_argument("--worker", default="", help=argparse.SUPPRESS)
    made.add_argument("--cold", action="store_true", help=argparse.SUPPRESS)
    made.add_argument("--parent", type=int, default=0, help=argparse.SUPPRESS)
    made.add_argument("--alarm", type=int, default=0, help=argparse.SUPPRESS)
    made.add_argument("--to", default="", help=argparse.SUPPRESS)
    return made


class Run:
    """A run of all phases.

    Args:
        given: The options.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self._start, self._limit_s = time.monotonic(), given.limit
        self._share = min(1.0, given.limit / LIMIT_S)  # Of each phase's limit.
        self._gpus, self._out, self._hang_s = given.gpus, free(Path(given.out)), given.hang_limit
        self._only = [each for each in given.only.split(",") if each]
        self.rows: list[dict[str, Any]] = []
        self.hangs: list[dict[str, Any]] = []
        self.failures: list[dict[str, str]] = []
        self.facts: dict[str, Any] = {}
        self._now = "all"  # The phase that runs.

    def run(self) -> int:
        """Run the phases, write the result after each, and print what it says."""
        try:
            self._write()
        except OSError as error:
            print(f"kit: {self._out} cannot be written: {error.strerror}; to fix: --out FILE")
            return USAGE
        try:
            status = self._phases()
        except KeyboardInterrupt:
            self.failures.append({"phase": self._now, "reason": "interrupted"})
            status = FAILED
        except Exception as error:  # What was measured is worth having.
            text = clean(f"{type(error).__name__}: {error}")[:300]
            self.failures.append({"phase": self._now, "reason": text})
            status = FAILED
        document = self._write()
        self._say(f"wrote {self._out} ({self._out.stat().st_size / 1024:.0f} KiB)")
        for line in document["summary"]:
            print(f"  {line}")
        count = sum(row["kind"] == "value" for row in self.rows)
        if count or self.hangs:
            found = "all as predicted" if not document["differs"] else "see DIFFERS"
            found = found if PARTS else "without predictions"
            print(f"  {count} values and orders of calls, {len(self.hangs)} hangs: {found}")
        for line in notes_of(self.rows):
            print(f"  left out: {line}")
        for line in document["differs"]:
            print(f"  DIFFERS: {line}")
        for failure in self.failures:
            print(f"  FAILED: {failure['phase']}: {failure['reason']}")
        return status

    def _write(self) -> dict[str, Any]:
        """Write all that is known, and return it; a file is there as a whole or not."""
        document = self._document()
        other = self._out.with_name(f"{self._out.name}.part")
        other.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        other.replace(self._out)
        return document

    def _phases(self) -> int:
        done = self._phase("machine", 1, 60)
        self.facts = done.rows[0]["values"] if done.rows else {}
        self.rows.clear()
        found = self.facts.get("device")
        if found is None:
            self.failures.append({"phase": "machine", "reason": "torch sees no GPU"})
            return MISSING
        count = min(self._gpus or found["count"], found["count"], 8)
        if self._gpus > count:
            print(f"{self._gpus} GPUs were asked for: {count} are there, or are the most")
        print(f"{count} x {found['name']}, torch {self.facts['torch']}", flush=True)
        if self.facts["other_processes"]:
            print("other processes use these GPUs: times will be longer", flush=True)
        for phase, limit_s in ALONE.items():
            if self._is_asked(phase):
                self._phase(phase, 1, limit_s)
        if count > 1:
            self._together(count)
        return FAILED if self.failures else OK

    def _together(self, count: int) -> None:
        """Run the phases of several GPUs."""
        asked = [(phase, limit) for phase, limit in TOGETHER_S.items() if self._is_asked(phase)]
        for ranks in worlds(count):
            for phase, limit_s in asked:
                if phase != "pairs" or ranks == max(worlds(count)):
                    self._phase(phase, ranks, limit_s)
        if self._is_asked(NCCL_TESTS):
            self._say(NCCL_TESTS)
            rows, failed = nccl_tests(count, self._start + self._limit_s - LEAST_S)
            self.rows += rows
            self.failures += [
                {"phase": NCCL_TESTS, "reason": f"{each}: no times"} for each in failed
            ]
        if self._is_asked("hangs"):
            for phase in HANGS:
                self._hang(phase, count, self._hang_s)

    def _is_asked(self, phase: str) -> bool:
        if phase.startswith("own ") and phase.removeprefix("own ") not in OWN:
            return False
        return not self._only or phase in self._only

    def _phase(self, phase: str, ranks: int, limit_s: float) -> Done:
        left_s = self._limit_s - (time.monotonic() - self._start)
        title = f"{phase} on {ranks} GPUs" if ranks > 1 else phase
        if left_s < LEAST_S:
            self.failures.append({"phase": title, "reason": "no time was left"})
            return Done()
        self._say(title)
        self._now = title
        done = Done()
        try:
            run_phase(phase, ranks, min(limit_s * self._share, left_s), done)
        finally:
            self.rows += merged(done.rows)
            if done.failure:
                self.failures.append({"phase": title, "reason": done.failure})
        self._write()
        return done

    def _hang(self, phase: str, ranks: int, limit_s: float) -> None:
        """Run a program that is to hang; to end is the failure."""
        left_s = self._limit_s - (time.monotonic() - self._start)
        if left_s < LEAST_S:
            self.failures.append({"phase": phase, "reason": "no time was left"})
            return
        self._say(f"{phase} on {ranks} GPUs, which is to hang")
        done = Done()
        run_phase(phase, ranks, min(START_HANG_S, left_s), done, limit_s)
        if done.failure and not done.is_late:
            self.failures.append({"phase": phase, "reason": done.failure})
            return
        found = {"name": f"{phase} on {ranks} ranks", **hang_of(done.rows, ranks)}
        self.hangs.append({**found, "hung": done.is_late})

    def _document(self) -> dict[str, Any]:
        predictions = {name: json.loads(text) for name, text in PARTS.items()}
        found = self.facts.get("device") or {"name": "", "num_sms": 0}
        name = chosen(predictions, found["name"], found["num_sms"])
        times = flat(predictions[name]["times"]) if name else {}
        values = predictions.get(VALUES, {}).get("values", {})
        measured: dict[str, Any] = {
            "machine": self.facts,
            "rows": self.rows,
            "hangs": self.hangs,
            "failures": self.failures,
            "cluster": name,
            "seconds": round(time.monotonic() - self._start, 1),
        }
        hashes = {part: sha256(text) for part, text in PARTS.items()}
        return {
            "format": FORMAT,
            "version": 1,
            "kit": {**KIT, "hashes": hashes, "predictions_sha256": hash_of_parts(hashes)},
            "cluster": name,
            "predictions": {part: PARTS[part] for part in (name, VALUES) if part in PARTS},
            "measured": measured,
            "measured_sha256": sha256(text_of(measured)),
            "summary": summary(times, self.rows),
            "differs": differences(values, self.rows) + other_hangs(values, self.hangs),
        }

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._start:4.0f} s] {text}", flush=True)


def free(path: Path) -> Path:
    """Return a path, or one beside it with a number where there is a result already."""
    number, found = 1, path
    while found.is_file():
        number += 1
        found = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return found


def worlds(count: int) -> Iterator[int]:
    """Yield the numbers of ranks to measure: all, of which some have predictions, then fewer."""
    yield from sorted({count, *(ranks for ranks in (8, 4, 2) if ranks < count)}, reverse=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
