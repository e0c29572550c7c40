"""The running program: its Context, its rank, and state that belongs to the rank."""

from simrank.ranks.current import (
    HOST_CLOCK,
    Program,
    current_program,
    default_context,
    register_default_context,
    require_program,
    require_rank,
    running_as,
    set_program,
)

__all__ = [
    "HOST_CLOCK",
    "Program",
    "current_program",
    "default_context",
    "register_default_context",
    "require_program",
    "require_rank",
    "running_as",
    "set_program",
]
