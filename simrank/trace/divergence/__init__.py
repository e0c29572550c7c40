"""Divergence of ranks on their way to a failure; see the README of `distributed`.

`track` records the lines of one rank, `compare` compares two of them, `follow` does so for a run.
"""

from simrank.trace.divergence.follow import Divergence

__all__ = ["Divergence"]
