"""Routing of tokens to experts, where a router's scores are unknown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

_SKEW = re.compile(r"zipf:(\d+(?:\.\d+)?)")
KNOWN_ROUTINGS = "balanced, zipf:S with S such as 1.2, or a seed such as 7"


@dataclass(frozen=True)
class Routing:
    """Law by which tokens choose experts where a router's scores are unknown.

    Attributes:
        text: As it was given.
        skew: Expert e has a share as 1 / (e + 1) ** skew of the tokens; 0: all have the same.
        seed: With it, each token draws its experts at random, all with the same chance.
    """

    text: str
    skew: float = 0.0
    seed: int | None = None

    @classmethod
    def parse(cls, text: str) -> Routing:
        """Return the routing that a text names: balanced, zipf:S, or a seed.

        Raises:
            ValueError: It names none; the text says which there are.
        """
        skew = _SKEW.fullmatch(text)
        if text == "balanced":
            return cls(text)
        if skew is not None:
            return cls(text, skew=float(skew[1]))
        if text.isdecimal():
            return cls(text, seed=int(text))
        raise ValueError(f"routing {text!r}: expected {KNOWN_ROUTINGS}")

    def experts(
        self, num_tokens: int, num_experts: int, num_chosen: int, key: tuple[int, ...] = ()
    ) -> npt.NDArray[np.int64]:
        """Return the experts of each token, without repetition.

        Without a seed the tokens of an expert are its share of them, to one token each way, but
        for experts whose share is above one: these get all tokens.

        Args:
            num_tokens: Number of tokens.
            num_experts: Number of experts.
            num_chosen: Experts of each token, at most `num_experts`.
            key: With a seed, says which draw it is: rank and number of the call.

        Shapes:
            returns: [num_tokens, num_chosen]
        """
        if self.seed is not None:
            generator = np.random.Generator(np.random.PCG64([self.seed, *key]))
            drawn = generator.random((num_tokens, num_experts), dtype=np.float32)
            return np.argpartition(drawn, num_chosen - 1, axis=1)[:, :num_chosen].astype(np.int64)
        ends = np.cumsum(self._shares(num_experts, num_chosen))
        # Systematic sampling: each token reads the shares at a place of its own, and one apart.
        stride = _coprime(round(num_tokens * 0.618), num_tokens)
        places = (np.arange(num_tokens) * stride % num_tokens + 0.5) / num_tokens
        found = np.searchsorted(ends, places[:, None] + np.arange(num_chosen), side="right")
        return np.minimum(found, num_experts - 1).astype(np.int64)

    def _shares(self, num_experts: int, num_chosen: int) -> npt.NDArray[np.float64]:
        """Return the share of the tokens that each expert gets, at most 1, `num_chosen` in all."""
        weights = np.arange(1, num_experts + 1, dtype=np.float64) ** -self.skew
        num_full = 0
        while True:  # Experts with all tokens leave more to the others.
            rest = weights[num_full:]
            shares = (num_chosen - num_full) * rest / rest.sum() if len(rest) else rest
            more = int((shares > 1).sum())
            if not more:
                return np.concatenate([np.ones(num_full), shares])
            num_full += more


def _coprime(near: int, number: int) -> int:
    """Return a number from `near` on that shares no factor with another one."""
    while np.gcd(max(near, 1), number) != 1:
        near += 1
    return max(near, 1)
