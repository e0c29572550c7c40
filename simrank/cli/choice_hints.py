"""The words that options and arguments choose from, checked with hints."""

from __future__ import annotations

from simrank.config.project import CHOICES
from simrank.config.quantity import choice_text, hint
from simrank.engine.task import carrier_choices
from simrank.errors import ConfigError, ConfigProblem

CHOICES_OF: dict[str, tuple[str, ...]] = {
    "races": ("off", "report", "error"),
    "on_failure": CHOICES["on_failure"],
    "carrier": carrier_choices(),
    "compute_time": CHOICES["compute_time"],
    "devices": CHOICES["cuda_devices"],
    "summary": ("text", "json", "none"),
    "prefix": ("rank", "none"),
    "backend": ("gloo", "nccl"),
}


def check_words(**given: str | None) -> None:
    """Check the values of several options against `CHOICES_OF`.

    Raises:
        ConfigError: One of them is none of its choices.
    """
    for name, word in given.items():
        check_word(f"--{name.replace('_', '-')}", word, CHOICES_OF[name])


def check_word(option: str, word: str | None, choices: tuple[str, ...]) -> None:
    """Check the value of an option; None is always accepted.

    Args:
        option: As `--on-failure`.
        word: As typed.
        choices: What there is.

    Raises:
        ConfigError: It is none of them; the nearest is named.
    """
    if word is None or word in choices:
        return
    facts = choice_text(choices), word or "''", hint(word, choices)
    raise ConfigError(ConfigProblem("command line", None, option, *facts))
