"""What `simrank run` records to explain a failure: the flight recorder, also by torch's variables.

Source: torch 2.13's docs on environment variables of ProcessGroupNCCL, and its FlightRecorder.cpp.
"""

from __future__ import annotations

import os
from pathlib import Path

import typer

from simrank.distributed.flight_recorder import FlightRecorder
from simrank.errors import ConfigError, ConfigProblem

_FILE_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_OFF = ("0", "n", "no", "false", "off")


def flight_recorder(folder: str | None) -> FlightRecorder | None:
    """Return the recorder that an option asks for, or torch's variables; None where nobody does.

    Raises:
        ConfigError: The files cannot be written.
    """
    if folder is None:
        return _of_environment()
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
    if name is None or os.environ.get("TORCH_NCCL_DUMP_ON_TIMEOUT", "1").lower() in _OFF:
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
    """Say where the dumps are, and what reads them."""
    if recorder is None or not recorder.written:
        return
    first = recorder.written[0]
    prefix = Path(recorder.prefix).name
    typer.echo(
        f"simrank: flight records of {len(recorder.written)} rank(s) are in {first.parent}: "
        f"python -m torch.distributed.flight_recorder.fr_trace {first.parent} -p {prefix}",
        err=True,
    )
