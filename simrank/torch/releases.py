"""The releases of torch that simrank is tested with, and the installed one."""

from __future__ import annotations

import re

import torch

TESTED = ("2.12.1", "2.13.0", "2.14.1")


def release_of(version: str) -> tuple[int, int]:
    """Return the minor release of a version, such as (2, 13) of `2.13.0+cpu`."""
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


INSTALLED = release_of(torch.__version__)
