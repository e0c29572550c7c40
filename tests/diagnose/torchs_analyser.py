"""torch's own analyser of flight records, `torchfrtrace`, for comparisons."""

from __future__ import annotations

import contextlib
import io
import logging
import re
from typing import TYPE_CHECKING, NamedTuple

from simrank.distributed.flight_recorder import PREFIX

if TYPE_CHECKING:
    from pathlib import Path


class Verdict(NamedTuple):
    """What it says of a folder.

    Attributes:
        ranks: Those that it names first; none if it finds nothing.
        text: All that it prints.
        error: Its own error, if it fails.
    """

    ranks: tuple[int, ...]
    text: str
    error: str


def said(folder: Path, prefix: str = PREFIX) -> Verdict:
    """Return its verdict on the records of a folder; code that they name runs in this process."""
    printed, error = io.StringIO(), ""
    logger = logging.getLogger("Flight Recorder")
    handlers, logger.handlers = logger.handlers, [logging.StreamHandler(printed)]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            from torch.distributed.flight_recorder.components import (
                builder,
                config_manager,
                loader,
                utils,
            )

            # Without this optional package it fails on batches of messages: not what is compared.
            vars(utils).setdefault("tabulate", lambda *_, **__: "")

            options = ["--allow-incomplete-ranks", str(folder), "-p", prefix]
            arguments = config_manager.JobConfig().parse_args(options)
            details, version = loader.read_dir(arguments)
            builder.build_db(details, arguments, version)
    except (Exception, SystemExit) as failure:  # noqa: BLE001 - another's program: its verdict
        error = f"{type(failure).__name__}: {failure}".splitlines()[0]
    finally:
        logger.handlers = handlers
    text = printed.getvalue()
    first = re.search(r"missing ranks: \{([\d, ]*)\}|error msg: (.*)", text)
    named = []
    if first is not None and first[1] is not None:
        named = re.findall(r"\d+", first[1])
    elif first is not None:
        named = re.findall(r"Culprit rank (\d+)", first[2])
    return Verdict(tuple(sorted({int(rank) for rank in named})), text, error)
