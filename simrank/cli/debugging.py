"""Records of `simrank run` for failures: the flight recorder, also by torch's variables.

Which of torch's and NCCL's variables have a meaning here is said where any is set.

Source: torch 2.13's docs on environment variables of ProcessGroupNCCL, and its FlightRecorder.cpp.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from simrank.distributed.flight_recorder import SIZE_VARIABLES, FlightRecorder
from simrank.distributed.planner import NCCL_VARIABLES
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Iterable


_FILE_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_DUMPS = "TORCH_NCCL_DUMP_ON_TIMEOUT"
_HONOURED = frozenset((*_FILE_VARIABLES, _DUMPS, *SIZE_VARIABLES, *NCCL_VARIABLES))
# Prefixes of what torch's communication reads, for which simrank stands in.
_OF_COMMUNICATION = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_")
_OFF = ("0", "n", "no", "false", "off")


def flight_recorder(folder: str | None, checks: str = "default") -> FlightRecorder | None:
    """Return the recorder of an option or of torch's variables; None without one.

    All checks need one; it writes no files where none was asked for.

    Raises:
        ConfigError: The files cannot be written.
    """
    if folder is None:
        return _of_environment() or (FlightRecorder("") if checks == "all" else None)
    try:
        recorder = FlightRecorder.of(folder)
    except OSError as error:
        expected, got = "a folder that can be made", f"{folder} ({error.strerror})"
        problem = ConfigProblem("command line", None, "--flight-recorder", expected, got)
        raise ConfigError(problem) from None
    _check_folder(recorder, "command line", "--flight-recorder")
    return recorder


def _of_environment() -> FlightRecorder | None:
    name = next((name for name in _FILE_VARIABLES if os.environ.get(name)), None)
    if name is None or os.environ.get(_DUMPS, "1").lower() in _OFF:
        return None
    recorder = FlightRecorder(os.environ[name])
    _check_folder(recorder, "environment", name)
    return recorder


def _check_folder(recorder: FlightRecorder, where: str, name: str) -> None:
    folder = Path(recorder.prefix).absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        expected, got = "a folder that can be written to", str(folder)
        raise ConfigError(ConfigProblem(where, None, name, expected, got))


def show_records(recorder: FlightRecorder | None) -> None:
    """Print the paths of the dumps, and their reader."""
    if recorder is None or not recorder.written:
        return
    first = recorder.written[0]
    typer.echo(
        f"simrank: flight records of {len(recorder.written)} rank(s) are in {first.parent}: "
        f"simrank diagnose {first.parent}",
        err=True,
    )


def show_surroundings() -> None:
    """Print on stderr which NCCL_* variables have no effect."""
    ignored = sorted(n for n in os.environ if n.startswith("NCCL_") and n not in _HONOURED)
    if ignored:
        typer.echo(
            f"simrank: environment variables without effect here: {', '.join(ignored)}", err=True
        )


def variables_text(names: Iterable[str]) -> str | None:
    """Return the text of torch's and NCCL's variables in use; None if none is set."""
    reported = sorted(name for name in names if name.startswith(("TORCH_", "NCCL_")))
    honoured = [name for name in reported if name in _HONOURED]
    ignored = [n for n in reported if n.startswith(_OF_COMMUNICATION) and n not in _HONOURED]
    left = [name for name in reported if name not in honoured and name not in ignored]
    kinds = {"honoured": honoured, "read by torch itself": left, "without effect here": ignored}
    texts = [f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names]
    return f"simrank: environment variables {'; '.join(texts)}" if texts else None
