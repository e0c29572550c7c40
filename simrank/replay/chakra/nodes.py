"""Nodes of Chakra traces, under the names of their schema.

Source:
    mlcommons/chakra, `schema/protobuf/et_def.proto`, schema 0.0.4: messages, and numbers of fields
    and enumerators.
"""

from __future__ import annotations

from dataclasses import dataclass

from simrank.errors import ConfigError, ConfigProblem

VERSION = "0.0.4"
TYPES = (
    "INVALID_NODE",
    "METADATA_NODE",
    "MEM_LOAD_NODE",
    "MEM_STORE_NODE",
    "COMP_NODE",
    "COMM_SEND_NODE",
    "COMM_RECV_NODE",
    "COMM_COLL_NODE",
)
COLLECTIVES = (
    "ALL_REDUCE",
    "REDUCE",
    "ALL_GATHER",
    "GATHER",
    "SCATTER",
    "BROADCAST",
    "ALL_TO_ALL",
    "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK",
    "BARRIER",
)
Value = int | float | bool | str | bytes | None


@dataclass(frozen=True, slots=True)
class RawNode:
    """A node as it stands in a file.

    Attributes:
        file: For messages.
        line: Where it begins; None in a binary file.
        id: Its number, which others name.
        name: What it is called.
        type: One of `TYPES`.
        deps: The numbers of nodes that it waits for, by control or data.
        duration_us: How long it took; 0: the trace does not say.
        attributes: Its further attributes; a list is None.
    """

    file: str
    line: int | None
    id: int
    name: str
    type: str
    deps: tuple[int, ...]
    duration_us: int
    attributes: dict[str, Value]

    def error(self, key: str, expected: str, got: str) -> ConfigError:
        """Return the error for something in it."""
        where = f"node {self.id}.{key}" if key else f"node {self.id}"
        return ConfigError(ConfigProblem(self.file, self.line, where, expected, got))

    def whole(self, key: str, least: int, most: int, default: int | None = None) -> int:
        """Return an attribute that is a whole number within bounds."""
        value = self.attributes.get(key, default)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
            value = int(value)  # As some tools write them.
        if type(value) is not int or not least <= value <= most:
            got = "nothing" if value is None else repr(value)
            raise self.error(key, f"a whole number from {least} to {most}", got)
        return value


def check_version(version: str, schema: str, file: str, line: int | None) -> None:
    """Raise for an unknown version of the schema.

    Args:
        version: Of the global metadata.
        schema: Its attribute of that name, as PyTorch's converter writes it: it ends in a version.
        file: For messages.
        line: Where the metadata stand.

    Raises:
        ConfigError: It is another one than `VERSION`.
    """
    said = version or schema.rpartition("chakra.")[2]
    if said != VERSION:
        expected = f"Chakra's schema {VERSION}"
        raise ConfigError(ConfigProblem(file, line, "version", expected, said or "nothing"))
