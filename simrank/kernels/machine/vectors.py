"""What the vector units of an SM do for a kernel: operations on blocks, by how fast they are.

Tensor cores are not alone in a kernel: between two dots of attention stand exponentials, maxima
and conversions, and those take their time (rule K4).
"""

from __future__ import annotations

from enum import IntEnum


class Unit(IntEnum):
    """Which operations are equally fast: a row of the programming guide's table of throughputs.

    FUSED: additions and multiplications of floats; two of them mostly become one instruction.
    SIMPLE: comparisons, choices, conversions between types, steps of reductions.
    SPECIAL: exponentials, logarithms, roots, divisions, sines.
    INTEGER: integers and pointers. Mostly addresses: of several elements that lie side by side, an
        SM computes one.
    """

    FUSED = 0
    SIMPLE = 1
    SPECIAL = 2
    INTEGER = 3


NUM_UNITS = len(Unit)


def unit_of(kind: str) -> int:
    """Return where numbers of a kind are added and multiplied.

    Args:
        kind: Of an element type: f, i, u, b or p.
    """
    return Unit.FUSED if kind == "f" else Unit.INTEGER


def comparing(kind: str) -> int:
    """Return where numbers of a kind are compared and chosen."""
    return Unit.SIMPLE if kind == "f" else Unit.INTEGER
