"""Divergence of ranks: the line from which they went different ways to a failure."""

from __future__ import annotations

from dataclasses import dataclass

from simrank.errors.base import RankState, at_text, ranks_text


@dataclass(frozen=True, slots=True)
class Side:
    """Ranks that went the same way.

    Attributes:
        ranks: Who, ascending.
        did: What, for example `took it`.
        values: Names of the condition, with what they stood for there.
    """

    ranks: tuple[int, ...]
    did: str
    values: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """Return `ranks 1-3 did not (loss = 2.9)`."""
        word = "rank" if len(self.ranks) == 1 else "ranks"
        known = ", ".join(f"{name} = {value}" for name, value in self.values)
        return f"{word} {ranks_text(self.ranks)} {self.did}" + (f" ({known})" if known else "")


@dataclass(frozen=True, slots=True)
class DivergencePoint:
    """The last line at which ranks were together, and what each did then.

    Attributes:
        file: The user's file.
        line: The line in it.
        text: Its source; empty where that is not known.
        sides: Who did what.
    """

    file: str
    line: int
    text: str
    sides: tuple[Side, ...]

    def __str__(self) -> str:
        """Return `diverged at train.py:41 `if loss > 3:`: rank 0 took it, rank 1 did not`."""
        shown = f" `{self.text}`" if self.text else ""
        sides = "; ".join(map(str, self.sides))
        return f"diverged{at_text(self.file, self.line)}{shown}: {sides}"


@dataclass(frozen=True, slots=True)
class UnlikeCalls:
    """Equal calls that ranks made from different lines: legal, and often the sign of lost step.

    Attributes:
        name: The call, for example `all_reduce #1 on group 'default_pg'`.
        sides: The ranks of each line; the state of each is empty.
    """

    name: str
    sides: tuple[RankState, ...]

    def __str__(self) -> str:
        """Return the call, and the line of each set of ranks."""
        sides = ", ".join(str(side).replace(": ", "", 1) for side in self.sides)
        return f"first equal calls from different lines: {self.name}: {sides}"
