"""Measured times from the command line: built-in tables, files, and standard input."""

from __future__ import annotations

import sys

from simrank.config.locate import locate
from simrank.config.yaml_source import read_text
from simrank.errors import ConfigError, ConfigProblem
from simrank.validate.kit.evidence import is_evidence, read_evidence

STDIN = "standard input"
FORMATS = (
    "built-in tables, CSV tables, nccl-tests' output or JSON, NCCL Inspector's JSON, a kit's "
    "kit.json; - is stdin"
)


def texts_of(words: list[str]) -> dict[str, str]:
    """Return the text of each word, by the name of its file.

    Args:
        words: Built-in names, files, or `-`.

    Raises:
        ConfigError: A word is neither, or cannot be read.
    """
    texts = {}
    for word in words:
        if word == "-":
            texts[STDIN] = _stdin()
        else:
            path = locate("measured", word)
            text = read_text(path)
            texts[str(path)] = read_evidence(text, word).table() if is_evidence(text) else text
    return texts


def _stdin() -> str:
    got = "no input"
    if sys.stdin is not None:
        try:
            return sys.stdin.read()
        except UnicodeDecodeError as error:
            got = f"bytes that are not UTF-8 at offset {error.start}"
    raise ConfigError(ConfigProblem(STDIN, None, "", "text", got))
