"""The text of a random program: its head, and choices that depend on timing or do not."""

from __future__ import annotations

import textwrap
from string import Template
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

_HEAD = """\
# ranks: $ranks$marks
# timing: $timing
# kinds: $kinds
import os
import queue
import random
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

num_actions = 0


def jitter(who):
    global num_actions
    seed = os.environ.get("TIMING_JITTER_SEED")
    if seed is not None:
        num_actions += 1
        drawn = random.Random(f"{seed} {who} {num_actions}").random()
        time.sleep(max(drawn - 0.5, 0) / 10)
"""


class Program:
    """What programs of ranks and of processes have in common."""

    def __init__(self, rng: random.Random, *, is_safe: bool) -> None:
        self.rng, self.is_safe = rng, is_safe
        self.kinds: list[str] = []
        self.marks: list[str] = []
        self.has_deadlock = self.has_failure = self.is_dependent = False

    def head(self, num_ranks: int) -> str:
        """Return the first lines of the program."""
        assert not (self.is_safe and self.is_dependent)
        timing = "dependent" if self.is_dependent else "safe"
        marks = "".join(f" # {mark}" for mark in dict.fromkeys(self.marks))
        kinds = ", ".join(dict.fromkeys(self.kinds))
        return Template(_HEAD).substitute(ranks=num_ranks, marks=marks, timing=timing, kinds=kinds)

    def code(self, text: str, **names: object) -> str:
        """Return code with its names put in; `$v` is the number of the scenario."""
        text = textwrap.dedent(text).strip("\n").removesuffix("\npass")
        return Template(text).substitute(v=len(self.kinds), **names)

    def ms(self, *choices: int) -> str:
        """Return a short time in seconds, as text."""
        return str(self.rng.choice(choices or (1, 2, 4, 8, 15)) / 1000)

    def show(self, safe: Sequence[str], dependent: Sequence[str] = ()) -> str:
        """Return an expression to print; those of the second list depend on timing."""
        if self.is_safe or not dependent or self.rng.random() < 0.15:
            return self.rng.choice(safe)
        self.is_dependent = True
        return self.rng.choice(dependent)

    def depends(self, probability: float = 1.0) -> bool:
        """Return whether the next code may depend on timing, and note that it does."""
        does = not self.is_safe and self.rng.random() < probability
        self.is_dependent |= does
        return does

    def plants_deadlock(self, probability: float = 0.1) -> bool:
        """Return whether the next code may deadlock: once in a program, and rarely."""
        does = not (self.has_deadlock or self.is_safe) and self.rng.random() < probability
        self.has_deadlock |= does
        self.is_dependent |= does
        return does

    def failure(self, condition: str, probability: float = 0.15) -> str:
        """Return a statement that fails if a condition of timing is false; or `pass`."""
        if self.has_failure or self.is_safe or self.rng.random() >= probability:
            return "pass"
        self.has_failure = self.is_dependent = True
        raising = f"if not ({condition}):\n    raise ValueError('unexpected order')"
        return self.rng.choice([f"assert {condition}", raising])
