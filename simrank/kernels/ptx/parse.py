"""Parser of inline assembly."""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import NamedTuple

from simrank.errors import UnsupportedError


class PtxOperand(NamedTuple):
    """An operand of an instruction.

    Attributes:
        kind: "register", "argument" ($0), "special" (%tid.x), "number" or "memory" ([$1+4]).
        name: Name of a register or special register.
        value: A number, the index of an argument, or the byte offset of an address.
        parts: Of "memory": the address; of "vector" ({a, b}) and "pair" (p|q): its operands.
    """

    kind: str
    name: str = ""
    value: float = 0
    parts: tuple[PtxOperand, ...] = ()


class Instruction(NamedTuple):
    """One instruction.

    Attributes:
        guard: Register of the condition under which a lane executes it; "" for always.
        is_negated: Whether a lane executes it if the guard is false.
        opcode: Parts of the opcode, for example ("ld", "relaxed", "sys", "u32").
        operands: The operands.
    """

    guard: str
    is_negated: bool
    opcode: tuple[str, ...]
    operands: tuple[PtxOperand, ...]

    @property
    def name(self) -> str:
        """Opcode as written."""
        return ".".join(self.opcode)


class Snippet(NamedTuple):
    """A parsed piece of assembly.

    Attributes:
        instructions: Instructions in order.
        labels: For each label, the index of the next instruction.
        loops: Whether a branch goes backward.
    """

    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    loops: bool


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)\s*")
_STATEMENT = re.compile(r"(?:@(!?)\s*(%?[\w$]+)\s+)?([A-Za-z_][\w.:]*)\s*(.*)", re.DOTALL)
_SPLIT = re.compile(r",(?![^\[{]*[\]}])")
_MEMORY = re.compile(r"\[\s*([^\]+]+?)\s*(?:\+\s*(-?\w+)\s*)?\]")
_SPECIALS = {
    "tid", "ntid", "ctaid", "nctaid", "laneid", "warpid", "nwarpid", "smid", "nsmid",
    "globaltimer", "globaltimer_lo", "clock", "clock64", "clock_hi", "cluster_ctarank",
    "envreg1", "envreg2", "realtime",
}  # fmt: skip
_IS_AMD = re.compile(r"\s*s_[a-z]")
_AMD_CLOCK = re.compile(r"s_memrealtime\s+(\$\d+)")


@lru_cache(maxsize=1024)
def parse(text: str) -> Snippet:
    """Return the instructions of inline assembly.

    Raises:
        UnsupportedError: The text contains an unknown construct.
    """
    plain = _COMMENT.sub(" ", text).replace("${:uid}", "_uid").replace("%=", "_uid")
    plain = plain.replace("$$", "")
    if _IS_AMD.match(plain):  # AMD assembly: only waits and the clock are supported.
        plain = _AMD_CLOCK.sub(r"mov.u64 \1, %realtime", plain).replace("\n", ";")
    result: list[Instruction] = []
    labels: dict[str, int] = {}
    for piece in plain.split(";"):
        statement = _without_labels(piece, labels, len(result))
        if not statement or statement.startswith((".reg", ".pragma")):
            continue
        if statement.startswith("."):
            raise UnsupportedError(f"inline assembly with {statement.split()[0]} is not supported")
        match = _STATEMENT.fullmatch(statement)
        if match is None:
            raise UnsupportedError(f"inline assembly is not understood at {statement!r}")
        negated, guard, opcode, operands = match.groups()
        operands = operands.replace("}", "") if "{" not in operands else operands
        parts = [part.strip() for part in _SPLIT.split(operands.strip()) if part.strip()]
        result.append(
            Instruction(
                guard or "",
                negated == "!",
                tuple(opcode.replace("::", ".").split(".")),
                tuple(_operand(part) for part in parts),
            )
        )
    loops = any(
        labels.get(part.name, len(result)) <= index
        for index, instruction in enumerate(result)
        if instruction.opcode[0] == "bra"
        for part in instruction.operands
    )
    return Snippet(tuple(result), labels, loops)


def _without_labels(piece: str, labels: dict[str, int], index: int) -> str:
    """Return a statement without braces and labels; the labels are added to `labels`."""
    rest = piece.strip()
    while rest:
        if rest[0] in "{}":
            rest = rest[1:].lstrip()
            continue
        match = _LABEL.match(rest)
        if match is None:
            break
        labels[match[1]] = index
        rest = rest[match.end() :]
    return rest


def _operand(text: str) -> PtxOperand:
    if text.startswith("{"):
        return PtxOperand("vector", parts=tuple(_operand(p.strip()) for p in text[1:-1].split(",")))
    if text.startswith("["):
        match = _MEMORY.fullmatch(text)
        if match is None:
            raise UnsupportedError(f"inline assembly with the address {text} is not supported")
        return PtxOperand("memory", value=int(match[2] or "0", 0), parts=(_operand(match[1]),))
    if "|" in text:
        return PtxOperand("pair", parts=tuple(_operand(p.strip()) for p in text.split("|")))
    if text.startswith("$") and text[1:].isdigit():
        return PtxOperand("argument", value=int(text[1:]))
    if text.startswith("%") and text[1:].partition(".")[0] in _SPECIALS:
        return PtxOperand("special", text[1:])
    number = _number(text)
    return PtxOperand("register", text) if number is None else PtxOperand("number", value=number)


def _number(text: str) -> float | None:
    """Return the value of a literal, or None: an integer, a float, or float bits as 0f3F800000."""
    if re.fullmatch(r"-?\d+\.\d*(?:[eE][-+]?\d+)?|-?\d+[eE][-+]?\d+", text):
        return float(text)
    match = re.fullmatch(r"0([fFdD])([0-9A-Fa-f]+)", text)
    if match is not None and len(match[2]) == (8 if match[1] in "fF" else 16):
        code = ">f" if match[1] in "fF" else ">d"
        number: float = struct.unpack(code, bytes.fromhex(match[2]))[0]
        return number
    if re.fullmatch(r"-?(?:0[xX][0-9A-Fa-f]+|0[bB][01]+|\d+)[uU]?", text):
        digits = text.rstrip("uU")
        is_octal = len(digits) > 1 and digits[0] == "0" and digits.isdigit()
        return int(digits, 8) if is_octal else int(digits, 0)
    return None
