"""Levels of checks: the mistakes that a run looks for, and those that fail it."""

from __future__ import annotations

from typing import Final, NamedTuple

# Assumed: up to 0.1 ms each, beside the seconds that a torch program takes to start.
MAX_OPERATIONS_BY_DEFAULT = 5_000
_RACES = ("off", "report", "error")


class Checks(NamedTuple):
    """The mistakes that a run looks for.

    Attributes:
        level: The word that the user chose.
        races: "off"; "first": among the first operations, found ones fail at the end; "report":
            all, in `ctx.races`; "error": all, raised at the second access.
        strict: Whether leaks are errors, and sends wait for their receivers.
        divergence: Whether the executed lines of ranks are compared.
        replicas: Whether DDP models are compared after each optimizer step.
    """

    level: str
    races: str
    strict: bool
    divergence: bool
    replicas: bool

    @property
    def fails(self) -> bool:
        """Whether lost messages and races that were found fail a run."""
        return self.level != "off"

    def without_values(self) -> Checks:
        """Return the checks of a run without data: no races, unless they were asked for."""
        return self._replace(races="off") if self.races == "first" else self


LEVELS: Final = {
    "off": Checks("off", "off", strict=False, divergence=False, replicas=False),
    "default": Checks("default", "first", strict=False, divergence=False, replicas=False),
    "all": Checks("all", "error", strict=True, divergence=True, replicas=True),
}


def checks_of(
    level: str,
    races: str | None = None,
    strict: bool | None = None,
    divergence: bool | None = None,
    replicas: bool | None = None,
) -> Checks:
    """Return the checks of a level, with those that were chosen one by one.

    Raises:
        ValueError: There is no such level, or no such choice of `races`.
    """
    if level not in LEVELS:
        raise ValueError(f"checks={level!r}; choices: {', '.join(LEVELS)}")
    if races is not None and races not in _RACES:
        raise ValueError(f"races={races!r}; choices: {', '.join(_RACES)}")
    usual = LEVELS[level]
    return Checks(
        level,
        usual.races if races is None else races,
        usual.strict if strict is None else strict,
        usual.divergence if divergence is None else divergence,
        usual.replicas if replicas is None else replicas,
    )
