"""Experts that tokens choose in runs without data, where the scores of a router are unknown."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from simrank.engine import user_site
from simrank.ranks.current import rank_program
from simrank.torch.cuda.library import operators
from simrank.torch.devices.unknown_values import count

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.isolation.ledger import Ledger

_ROUTED_KEY = "calls that choose experts"


def _routed(original: Callable[..., Any], place: int, default: int | None) -> Callable[..., Any]:
    """Wrap `topk` or `argmax`: unknown indices are those that the run's routing chooses.

    Args:
        original: The function or method.
        place: Of its argument `dim`.
        default: That argument, if it is not given.
    """

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        program, name = rank_program(), original.__name__
        scores = args[0] if args else kwargs.get("input")
        indices = result[1] if isinstance(result, tuple) else result
        dim = kwargs.get("dim", args[place] if len(args) > place else default)
        if program is None or type(indices) is not torch.Tensor or dim is None or scores is None:
            return result
        if indices.is_cuda and not operators.is_known(indices):
            _route(program, name, scores, indices, dim)
        return result

    return call


def _route(program: Any, name: str, scores: torch.Tensor, indices: torch.Tensor, dim: int) -> None:
    """State the experts that tokens choose, or say in the summary that all choose the same."""
    stated, site = program.context.unknown, user_site()
    where = "" if site is None else f" at {site.line()}"
    if stated.routing is None:
        if stated.value is not None:
            count(
                program.context,
                f"{name}{where} has no scores: if it chooses experts, --unknown {stated.value:g} "
                f"sends all tokens to expert {stated.value:g}, or to none (to fix: --routing "
                "balanced)",
                _ROUTED_KEY,
            )
        return
    num_experts = scores.shape[dim]
    num_tokens = scores.numel() // num_experts
    num_chosen = indices.numel() // num_tokens
    calls = program.local[_ROUTED_KEY] = program.local.get(_ROUTED_KEY, 0) + 1
    found = stated.routing.experts(num_tokens, num_experts, num_chosen, (program.rank, calls))
    loads = np.bincount(found.ravel(), minlength=num_experts)
    rest = list(scores.shape)
    del rest[dim]
    moved = torch.from_numpy(found).reshape(*rest, num_chosen).movedim(-1, dim)
    operators.assume(indices, moved.reshape(indices.shape))
    count(
        program.context,
        f"{name}{where} chooses {num_chosen} of {num_experts} experts for {num_tokens} tokens by "
        f"--routing {stated.routing.text}: the fullest has {loads.max() / loads.mean():.2f} times "
        "the mean",
        _ROUTED_KEY,
    )


def guard(patches: Ledger) -> None:
    """Wrap the functions of torch by which routers choose experts."""
    for owner in (torch, torch.Tensor):
        patches.replace(owner, "topk", _routed(owner.topk, 2, -1))
        patches.replace(owner, "argmax", _routed(owner.argmax, 1, None))
