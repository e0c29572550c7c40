"""Verdicts: whether a layout equals the single program, its first difference; text and page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simrank.errors import ranks_text
from simrank.pages import document, grade, notes, section, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from simrank.equality.layout import Layout
    from simrank.equality.record import DecodingStep
    from simrank.pages.document import Markup

# Where a training step differs, in the order of the step.
RUN, RACE, INITIAL, FORWARD = "run", "race", "initial values", "forward"
PRECISION, RECORDING = "precision", "recording"
LOSS, BACKWARD, PARAMETER_GRADIENTS, STEP = "loss", "backward", "gradients", "step"
# In place of a module.
WHOLE, MODEL, LOSS_MODULE, GENERATE = "(all)", "(model)", "(loss)", "(generate)"
MICRO_BATCHES = "micro-batches"  # In place of an axis.
# Kinds of what no comparison has seen.
NOT_SEEN = ("arguments", "attributes", "buffers", "dropouts", "optimizer_states", "loss_values")
_MAX_NAMED = 8  # Modules in a line of a report.
_NEARLY_ALL = 0.9  # Of the parameters.


@dataclass
class FirstDifference:
    """The first difference.

    Attributes:
        direction: RUN, RACE, RECORDING, INITIAL, FORWARD, LOSS, BACKWARD, PARAMETER_GRADIENTS, STEP
            or PRECISION.
        module: The module whose code it began in; WHOLE, MODEL, or several with commas.
        axes: Axes of the layout along which it arises, or MICRO_BATCHES; empty where unknown.
        cause: What is wrong there.
        error: Relative.
        ranks: Those that are wrong.
        step: Training step, or decoding step among those of all batches, from 0.
        decoding: Of a decoding step its place.
        place: Line of the program, or "".
        hint: What was expected, or "".
        calls: The collectives that were called there, or "".
        compared: Of a BACKWARD: what was compared before it, or "".
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
    decoding: DecodingStep | None = None
    place: str = ""
    hint: str = ""
    calls: str = ""
    compared: str = ""
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
        not_seen: By kind, names of what no comparison has seen, with the reason.
        notes: What a reader should know besides.
    """

    layout: Layout
    found: FirstDifference | None = None
    tally: Tally = field(default_factory=Tally)
    unaligned: list[str] = field(default_factory=list)
    not_seen: dict[str, list[str]] = field(default_factory=dict)
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


# ---- verdicts as text and as plain data ----

_MAX_UNALIGNED = 3  # Named in a line.


def verdict_text(verdict: Verdict) -> str:
    """Return `ok dp4: ...` or `FAIL dp2 x tp2: ...`, a line."""
    if verdict.found is not None:
        return f"FAIL {verdict.layout}: {found_text(verdict.found)}"
    count = len(verdict.unaligned)
    text = (
        f"ok {verdict.layout}: {verdict.tally.count} tensors, "
        f"worst {verdict.tally.worst:.2g} of tolerance, {count} not aligned"
    )
    if count:
        named = "; ".join(verdict.unaligned[:_MAX_UNALIGNED])
        text += f" ({named}{'; ...' if count > _MAX_UNALIGNED else ''})"
    return text


def details(verdict: Verdict, *, lists_modules: bool = False) -> list[str]:
    """Return the lines below that of a verdict: notes, and the report of an error.

    Args:
        verdict: The verdict.
        lists_modules: Whether to add a line for each module with a wrong tensor, parameter or
            gradient: the first difference, and what follows from it.
    """
    report = [] if verdict.found is None else verdict.found.report.strip().splitlines()
    lines = [*_not_seen(verdict), *verdict.notes, *report]
    if lists_modules and verdict.found is not None:
        lines += [
            f"wrong: {module}, {share:.2g} times its tolerance"
            for module, share in verdict.tally.shares.items()
            if share is not None and share > 1
        ]
    return lines


def _not_seen(verdict: Verdict) -> list[str]:
    """Return `not seen: 2 arguments (block: argument 1 <Config>; ...), 1 buffer (...)`, if any."""
    parts = []
    for kind, names in verdict.not_seen.items():
        word = kind.replace("_", " ")
        more = "; ..." if len(names) > _MAX_UNALIGNED else ""
        named = "; ".join(names[:_MAX_UNALIGNED]) + more
        parts.append(f"{len(names)} {word if len(names) > 1 else word[:-1]} ({named})")
    return [f"not seen: {', '.join(parts)}"] if parts else []


def found_text(found: FirstDifference) -> str:
    """Return the text of a first difference: its place, and its cause."""
    parts = [f"{_when(found)}, {found.module}: {found.cause}"]
    if found.axes:
        parts.append(f"axis {', '.join(found.axes)}")
    if found.ranks:
        word = "rank" if len(found.ranks) == 1 else "ranks"
        parts.append(f"{word} {ranks_text(found.ranks)}")
    if found.hint:
        after = f" after {found.place}" if found.place else ""
        parts.append(f"expected {found.hint}{after}")
    elif found.place:
        parts.append(f"at {found.place}")
    if found.calls:
        parts.append(f"collectives there: {found.calls}")
    if found.decoding is not None and found.decoding.batch:
        parts.append(f"in batch {found.decoding.batch + 1}")
    elif found.decoding is None and found.step:
        parts.append(f"from step {found.step + 1} on")
    if found.direction not in (RUN, RACE):
        parts.append(f"relative error {found.error:.2g}")
    if found.compared:
        parts.append(found.compared)
    return "; ".join(parts)


def _when(found: FirstDifference) -> str:
    """Return the direction, or the decoding step: `prefill`, or `decoding step 1`."""
    if found.decoding is None or found.direction != FORWARD:
        return found.direction
    return f"decoding step {found.decoding.number}" if found.decoding.number else "prefill"


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain data; the keys are a promise."""
    found = verdict.found
    return {
        "layout": dict(verdict.layout.axes),
        "is_equal": found is None,
        "num_compared": verdict.tally.count,
        "worst_share_of_tolerance": verdict.tally.worst,
        "not_aligned": verdict.unaligned,
        "not_seen": {kind: verdict.not_seen.get(kind, []) for kind in NOT_SEEN},
        "notes": verdict.notes,
        "found": None
        if found is None
        else {
            "direction": found.direction,
            "module": found.module,
            "axes": list(found.axes),
            "cause": found.cause,
            "relative_error": found.error,
            "ranks": list(found.ranks),
            "step": 1 + (found.decoding.batch if found.decoding else found.step),
            "decoding_step": found.decoding.number if found.decoding else None,
            "place": found.place,
            "hint": found.hint,
            "calls": found.calls,
            "compared": found.compared,
        },
    }


# ---- a page of verdicts: a matrix of layouts and modules, from green to red ----

_STEPS = (1.0, 1e4, 1e8, 1e12)  # Of the tolerance; in float64 a fault is far above the second.


def equal_page(program: str, verdicts: Sequence[Verdict], facts: Sequence[tuple[str, str]]) -> str:
    """Return the page; equal verdicts give equal text.

    Args:
        program: The file.
        verdicts: Of the layouts.
        facts: Of the run, by name.
    """
    return document(f"simrank equal: {program}", facts, [_first(verdicts), _matrix(verdicts)])


def _first(verdicts: Sequence[Verdict]) -> Markup:
    """Return a line per layout."""
    rows = []
    for verdict in verdicts:
        if verdict.found is None:
            count, worst = verdict.tally.count, verdict.tally.worst
            text = f"equal: {count} tensors, worst {worst:.2g} of tolerance"
        else:
            text = found_text(verdict.found)
        rows.append((str(verdict.layout), "ok" if verdict.found is None else "FAIL", text))
    said = [
        f"{v.layout}: {note}"
        for v in verdicts
        for note in (*_unaligned(v), *_not_seen(v), *v.notes)
    ]
    columns = ("layout", "", "first difference")
    return section("Layouts", table("Layouts", columns, rows, "rows texts"), notes(said))


def _unaligned(verdict: Verdict) -> list[str]:
    if not verdict.unaligned:
        return []
    return [f"{len(verdict.unaligned)} tensors not aligned: {'; '.join(verdict.unaligned)}"]


def _matrix(verdicts: Sequence[Verdict]) -> Markup:
    """Return the largest error of each module on each layout."""
    modules = sorted({m for v in verdicts for m in v.tally.shares}, key=_key)
    rows = [(module, *(_cell(verdict, module) for verdict in verdicts)) for module in modules]
    columns = ("module", *(str(verdict.layout) for verdict in verdicts))
    text = (
        "The largest error of a module's tensors, of its parameters and of their gradients, as a "
        "part of the tolerance. Above 1 it is wrong; what follows a fault is wrong, too. An empty "
        "cell was not compared."
    )
    return section("Modules", notes([text]), table("Modules", columns, rows, "rows named"))


def _cell(verdict: Verdict, module: str) -> Markup | str:
    share = verdict.tally.shares.get(module)
    if share is None:
        return "not aligned" if module in verdict.tally.shares else ""
    return grade(f"{share:.1e}", share, _STEPS)


def _key(module: str) -> tuple[object, ...]:
    """Return the order of modules: numbers by value, the model first."""
    if module == MODEL:
        return ()
    return tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in module.split("."))
