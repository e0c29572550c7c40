"""torch.distributed programs, unchanged, on simulated ranks.

Programs call `assume`, and nothing else here: `install` names what stands in torch while a Context
is entered.
"""

from typing import Any

__all__ = ["assume"]


def assume(tensor: Any, value: Any) -> None:
    """State the values of a tensor in a run without data, such as a router's or a loss.

    With data, and outside of ranks, it does nothing: a program can say it once and run both ways.

    Simulated cost: none.

    Args:
        tensor: A torch tensor; all its elements are known from now on.
        value: A number for all elements, or a tensor that broadcasts to its shape.
    """
    from simrank.torch.devices import unknown_values  # noqa: PLC0415 - it needs torch

    unknown_values.assume(tensor, value)
