"""Results of kits: read and checked by `read_evidence`."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simrank.collectives.bounds import busbw_factor
from simrank.config.files import configs_dir
from simrank.config.measured import COLUMNS
from simrank.errors import ConfigError, ConfigProblem
from simrank.validate.kit.script.result import (
    FORMAT,
    VALUES,
    differences,
    flat,
    hash_of_parts,
    other_hangs,
    sha256,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = 1


@dataclass(frozen=True)
class Timed:
    """One time that was measured, beside its prediction.

    Attributes:
        phase: Such as `collectives`.
        name: Of the item.
        time_us: Measured, in microseconds.
        predicted_us: Predicted.
        low_us: Lower end of the 90 % interval; 0 if it has none.
        high_us: Upper end.
    """

    phase: str
    name: str
    time_us: float
    predicted_us: float
    low_us: float = 0.0
    high_us: float = 0.0

    @property
    def error(self) -> float:
        """Return the error of the prediction, as a part of the measured time."""
        return self.predicted_us / self.time_us - 1

    @property
    def is_inside(self) -> bool | None:
        """Whether the time is in the interval; None if there is none."""
        return self.low_us <= self.time_us <= self.high_us if self.high_us else None


@dataclass(frozen=True)
class Evidence:
    """The result of a kit.

    Attributes:
        file: Where it was read.
        document: The whole.
    """

    file: str
    document: dict[str, Any]

    @property
    def cluster(self) -> str:
        """Return the cluster that was predicted; "" if no cluster has this GPU."""
        found: str = self.document["cluster"]
        return found

    @property
    def registered(self) -> str:
        """Return the day on which the kit's predictions were registered; "" if they are not."""
        text = (configs_dir() / "evidence" / "kits.csv").read_text(encoding="utf-8")
        days = {row["predictions_sha256"]: row["made"] for row in csv.DictReader(io.StringIO(text))}
        return days.get(self.document["kit"]["predictions_sha256"], "")

    @property
    def measured(self) -> dict[str, Any]:
        """Return the measurements."""
        found: dict[str, Any] = self.document["measured"]
        return found

    def times(self) -> list[Timed]:
        """Return the times that were predicted."""
        text = self.document["predictions"].get(self.cluster, "")
        known = flat(json.loads(text)["times"]) if text else {}
        found = []
        for row in self.measured["rows"]:
            predicted = known.get(f"{row['phase']}: {row.get('name')}")
            if row["kind"] == "time" and predicted and row["time_us"] > 0:
                found.append(Timed(row["phase"], row["name"], row["time_us"], *predicted))
        return found

    def differences(self) -> list[str]:
        """Return the values, orders of calls and hangs that are not those predicted."""
        text = self.document["predictions"].get(VALUES, "")
        known = json.loads(text)["values"] if text else {}
        rows, hangs = self.measured["rows"], self.measured["hangs"]
        return [*differences(known, rows), *other_hangs(known, hangs)]

    def table(self) -> str:
        """Return the collectives as a measured table, CSV.

        Raises:
            ConfigError: It has none.
        """
        lines = [*self._collectives()]
        if not lines:
            raise self.problem("measured", "collectives of several GPUs", "none")
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(lines)
        return text.getvalue()

    def _collectives(self) -> Iterator[list[object]]:
        system = (self.measured["machine"].get("device") or {}).get("name", "")
        for row in self.measured["rows"]:
            if row["kind"] == "time" and row["phase"] == "collectives":
                algbw = row["bytes"] / row["time_us"] / 1e3
                busbw = algbw * busbw_factor(row["collective"], row["ranks"])
                names = [system, row["collective"], row["ranks"], row["bytes"], row["dtype"]]
                yield [*names, row["time_us"], f"{algbw:.4g}", f"{busbw:.4g}", self.file]

    def problem(self, place: str, expected: str, got: str) -> ConfigError:
        """Return an error of the file."""
        return ConfigError(ConfigProblem(self.file, None, place, expected, got))


def is_evidence(text: str) -> bool:
    """Return whether a text is the result of a kit."""
    return text.lstrip().startswith("{") and f'"format": "{FORMAT}"' in text[:200]


def read_evidence(text: str, file: str) -> Evidence:
    """Read the result of a kit, and check its hashes.

    Raises:
        ConfigError: It is no such result, is incomplete, or was changed.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        problem = ConfigProblem(file, error.lineno, "", "a whole file", "one that ends early")
        raise ConfigError(problem) from None
    found = Evidence(file, document)
    _check_keys(found)
    _check_hashes(found)
    return found


def _check_keys(found: Evidence) -> None:
    """Check the keys of a result."""
    document = found.document
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise found.problem("format", f"a file that kit.py wrote ({FORMAT})", "another")
    if document.get("version") != VERSION:
        expected = f"{VERSION}, or a newer simrank"
        raise found.problem("version", expected, str(document.get("version")))
    for key in ("kit", "predictions", "measured"):
        if not isinstance(document.get(key), dict):
            raise found.problem(key, "an object, as kit.py writes it", repr(document.get(key)))
    if not isinstance(document.get("cluster"), str):
        raise found.problem("cluster", "a name, or an empty one", repr(document.get("cluster")))


def _check_hashes(found: Evidence) -> None:
    """Check the hashes of a result: of its measurements, and of its predictions."""
    document = found.document
    if document["cluster"] != document["measured"].get("cluster"):
        raise found.problem("cluster", f"{document['measured'].get('cluster')!r}", "another")
    if sha256(text_of(document["measured"])) != document.get("measured_sha256"):
        raise found.problem("measured", "what its hash says", "a changed measurement")
    hashes = document["kit"].get("hashes", {})
    for part, text in document["predictions"].items():
        if sha256(text) != hashes.get(part):
            raise found.problem(f"predictions.{part}", "what its hash says", "a changed prediction")
    if hash_of_parts(hashes) != document["kit"].get("predictions_sha256"):
        raise found.problem("kit.predictions_sha256", "the hash of the hashes", "another")
