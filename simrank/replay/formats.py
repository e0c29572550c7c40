"""A trace in whichever form it comes; start with `read_trace`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from simrank.bench.json_parts import read_parts
from simrank.config.files import read_user_file
from simrank.errors import ConfigError, ConfigProblem
from simrank.replay.chakra.read import chakra_trace
from simrank.replay.chakra.text import is_chakra_json, read_text_form
from simrank.replay.chakra.wire import read_wire
from simrank.replay.goal import is_goal, parse_goal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from simrank.replay.chakra.nodes import RawNode
    from simrank.replay.trace import Trace

_RANK = re.compile(r"\.(\d{1,9})\.[A-Za-z]+$", re.ASCII)
_FORMS = "a GOAL schedule (`num_ranks 2`), or Chakra's traces in JSON or protobuf"


def read_trace(files: Sequence[str], groups_file: str | None = None) -> Trace:
    """Read a trace.

    Args:
        files: One GOAL schedule, or a file of Chakra for each rank: `name.0.et`, `name.1.et`, ...
        groups_file: Ranks of Chakra's process groups by their names, in JSON, as ASTRA-sim has it.

    Raises:
        ConfigError: A file is none of these, or something in it is wrong.
    """
    first = read_user_file(files[0])
    text = _text_of(first)
    if text is not None and is_goal(text):
        if len(files) > 1:
            raise ConfigError(ConfigProblem(files[1], None, "", "one GOAL schedule", "a second"))
        return parse_goal(text.replace("\r\n", "\n"), files[0])
    ranks: dict[int, list[RawNode]] = {}
    for file in files:
        nodes = _raw_nodes(
            read_user_file(file), file
        )  # First check for a trace: only then reject the file's name.
        rank = _rank_of(file, len(files))
        if rank in ranks:
            raise ConfigError(
                ConfigProblem(file, None, "", "a file per rank", f"rank {rank} again")
            )
        ranks[rank] = nodes
    groups = {} if groups_file is None else _groups(groups_file, len(files))
    return chakra_trace([ranks[rank] for rank in range(len(files))], groups, files[0])


def _text_of(data: bytes) -> str | None:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _raw_nodes(data: bytes, file: str) -> list[RawNode]:
    text = _text_of(data)
    if text is not None and is_chakra_json(text):
        return read_text_form(text, file)
    if not file.endswith(".et"):
        line = None if text is None else 1
        got = "bytes that are no text" if text is None else text.lstrip().partition("\n")[0]
        raise ConfigError(ConfigProblem(file, line, "", _FORMS, got or "nothing"))
    return read_wire(data, file)


def _rank_of(file: str, num_ranks: int) -> int:
    match = _RANK.search(file)
    if match is None or int(match[1]) >= num_ranks:
        expected = f"{_FORMS} with their ranks 0 to {num_ranks - 1} in their names: trace.0.et"
        raise ConfigError(ConfigProblem(file, None, "", expected, "another name"))
    return int(match[1])


def _groups(file: str, num_ranks: int) -> Mapping[str, tuple[int, ...]]:
    """Return the ranks of each process group."""
    data = read_user_file(file).decode("utf-8", "replace")
    parts = list(read_parts(data, file))
    if len(parts) != 1:
        expected = "one object: name to ranks"
        raise ConfigError(ConfigProblem(file, 1, "", expected, f"{len(parts)}"))
    part = parts[0]
    for name, members in part.data.items():
        is_valid = (
            isinstance(members, list)
            and members
            and all(type(rank) is int and 0 <= rank < num_ranks for rank in members)
        )
        if not is_valid or len(set(members)) < len(members):
            raise part.error(name, f"ranks from 0 to {num_ranks - 1}", json.dumps(members))
    return {name: tuple(sorted(members)) for name, members in part.data.items()}
