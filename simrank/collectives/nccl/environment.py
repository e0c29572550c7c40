"""NCCL_ALGO and NCCL_PROTO: which algorithms and protocols a user leaves to the tuner.

Syntax as NCCL's own: names with commas between them, all others with `^` before them, upper and
lower case alike; behind semicolons, lists for single collectives: `ring;allreduce:tree,nvls`.
Source: NVIDIA/nccl v2.30.7, src/tuning/cost_model.cc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.collectives.nccl.constants import ALGORITHMS, P2P, PROTOCOLS
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from simrank.collectives.nccl.tuner import Candidate

_ALGORITHMS = {name.replace("_", ""): name for name in ALGORITHMS}
_PROTOCOLS = {name.lower(): name for name in PROTOCOLS}
_COLLECTIVES = {
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
}


def parse_algorithms(text: str, collective: str) -> frozenset[str] | None:
    """Return the algorithms that a value of NCCL_ALGO leaves a collective; None: any.

    Raises:
        ConfigError: A name is none of NCCL's, or none is left.
    """
    return _parse("NCCL_ALGO", text, collective, _ALGORITHMS)


def parse_protocols(text: str, collective: str) -> frozenset[str] | None:
    """Return the protocols that a value of NCCL_PROTO leaves a collective; None: any.

    Raises:
        ConfigError: A name is none of NCCL's.
    """
    return _parse("NCCL_PROTO", text, collective, _PROTOCOLS)


def _parse(
    variable: str, text: str, collective: str, known: Mapping[str, str]
) -> frozenset[str] | None:
    """Return the names that a value allows a collective; its own list overrides the common one."""
    found = None
    for number, part in enumerate(text.split(";")):
        prefix, colon, listed = part.rpartition(":")
        of = prefix.strip().lower()
        if colon and of not in _COLLECTIVES:
            raise _wrong(variable, f"a collective of {', '.join(_COLLECTIVES)}", of)
        if not colon and number:
            raise _wrong(variable, "COLLECTIVE: before each list but the first", part)
        left = _left(variable, listed.strip(), known)
        if not colon or _COLLECTIVES[of] == collective:
            found = left
    return found


def _wrong(variable: str, expected: str, got: str) -> ConfigError:
    return ConfigError(ConfigProblem(variable, None, "", expected, repr(got)))


def _left(variable: str, text: str, known: Mapping[str, str]) -> frozenset[str]:
    is_exclusion = text.startswith("^")
    words = [word.strip().lower() for word in text.removeprefix("^").split(",")]
    wrong = [word for word in words if word not in known]
    if wrong:
        raise _wrong(variable, f"names of {', '.join(known)}", wrong[0])
    named = frozenset(known[word] for word in words)
    left = frozenset(known.values()) - named if is_exclusion else named
    if not left:
        raise _wrong(variable, f"some of {', '.join(known)}", text)
    return left


def only(
    considered: Sequence[Candidate],
    algorithms: Collection[str] | None,
    protocols: Collection[str] | None,
) -> list[Candidate]:
    """Return the candidates that are left to choose from.

    Args:
        considered: All of them.
        algorithms: Those that may be taken; None: any.
        protocols: Likewise.

    Raises:
        ConfigError: None is left.
    """
    left = [
        each
        for each in considered
        if each.algorithm == P2P  # Messages have no other.
        or (
            (algorithms is None or each.algorithm in algorithms)
            and (protocols is None or each.protocol in protocols)
        )
    ]
    if not left:
        pairs = ", ".join(f"{each.algorithm} {each.protocol}" for each in considered)
        asked = " ".join(sorted({*(algorithms or ()), *(protocols or ())}))
        raise ConfigError(
            ConfigProblem(
                "NCCL_ALGO, NCCL_PROTO",
                None,
                "",
                f"something of what NCCL has for this collective and reduction here: {pairs}",
                asked,
            )
        )
    return left
