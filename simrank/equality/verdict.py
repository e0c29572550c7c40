"""Verdicts: whether a layout equals the single program, and its first difference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from simrank.equality.layout import Layout

# Where a training step differs, in the order of the step.
RUN, RACE, INITIAL, FORWARD = "run", "race", "initial values", "forward"
PRECISION = "precision"
LOSS, BACKWARD, PARAMETER_GRADIENTS, STEP = "loss", "backward", "gradients", "step"
# In place of a module.
WHOLE, MODEL, LOSS_MODULE = "(all)", "(model)", "(loss)"
_MAX_NAMED = 8  # Modules in a line of a report.
_NEARLY_ALL = 0.9  # Of the parameters.


@dataclass
class Found:
    """The first difference.

    Attributes:
        direction: RUN, RACE, INITIAL, FORWARD, LOSS, BACKWARD, PARAMETER_GRADIENTS or STEP.
        module: The module whose code it began in; WHOLE, MODEL, or several with commas.
        axes: Axes of the layout along which it arises; empty where that is not known.
        cause: What is wrong there.
        error: Relative.
        ranks: Those that are wrong.
        step: Training step, from 0.
        place: Line of the program, or "".
        hint: What was expected, or "".
        calls: The collectives that were called there, or "".
        report: The whole text of an error, or "".
        needs_masks: Whether it may be due to masks of dropout that could not be aligned.
    """

    direction: str
    module: str
    axes: tuple[str, ...]
    cause: str
    error: float = 1.0
    ranks: Sequence[int] = ()
    step: int = 0
    place: str = ""
    hint: str = ""
    calls: str = ""
    report: str = ""
    needs_masks: bool = True


@dataclass
class Tally:
    """Tensors that were compared.

    Attributes:
        count: Those that are right.
        worst: Their largest error, as a part of its tolerance.
        shares: By module, the largest error as a part of its tolerance, also of wrong ones; None
            where a tensor could not be aligned.
    """

    count: int = 0
    worst: float = 0.0
    shares: dict[str, float | None] = field(default_factory=dict)

    def add(self, module: str, share: float, *, is_right: bool = True) -> None:
        """Count a tensor of a module."""
        if is_right:
            self.count += 1
            self.worst = max(self.worst, share)
        self.shares[module] = max(self.shares.get(module) or 0.0, share)


@dataclass
class Verdict:
    """The verdict on a layout.

    Attributes:
        layout: The layout.
        found: The first difference; None where it equals the single program.
        tally: What was compared.
        unaligned: Tensors that were not compared, with the reason.
        notes: What a reader should know besides.
    """

    layout: Layout
    found: Found | None = None
    tally: Tally = field(default_factory=Tally)
    unaligned: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def module_of(name: str) -> str:
    """Return the module of a parameter or buffer."""
    return name.rpartition(".")[0] or MODEL


def names_text(names: Sequence[str], every: Sequence[str]) -> str:
    """Return `3 of 20 parameters, a.weight, b.weight`."""
    unique = list(dict.fromkeys(names))
    text = f"{len(unique)} of {len(every)} parameters"
    return text if len(unique) == len(every) else f"{text}, {', '.join(unique[:3])}"


def modules_text(names: Sequence[str], every: Sequence[str]) -> str:
    """Return the modules of some parameters: `layers.*.norm` where it is each layer's."""
    unique = list(dict.fromkeys(names))
    if len(unique) > _NEARLY_ALL * len(every):
        return WHOLE
    known = dict.fromkeys(map(module_of, every))
    whole = {module: _whole(module, known, unique) for module in map(module_of, unique)}
    wrong = dict.fromkeys(whole.values())
    known = {whole.get(module, module): None for module in known}
    found: dict[str, None] = {}
    for module in wrong:
        pattern = _pattern(module)
        alike = [each for each in known if _pattern(each) == pattern]
        is_each = pattern != "*" and len(alike) > 1 and all(each in wrong for each in alike)
        found[pattern if is_each else module] = None
    text = ", ".join(list(found)[:_MAX_NAMED])
    return text if len(found) <= _MAX_NAMED else f"{text} and {len(found) - _MAX_NAMED} more"


def _whole(module: str, known: Iterable[str], names: Sequence[str]) -> str:
    """Return the largest module around one whose modules with parameters are all named."""
    wrong = set(map(module_of, names))
    parts = module.split(".")
    for count in range(1, len(parts)):
        home = ".".join(parts[:count])
        inside = [each for each in known if each == home or each.startswith(f"{home}.")]
        if len(inside) > 1 and all(each in wrong for each in inside):
            return home
    return module


def _pattern(module: str) -> str:
    """Return a name with `*` in place of numbers."""
    return ".".join("*" if part.isdigit() else part for part in module.split("."))
