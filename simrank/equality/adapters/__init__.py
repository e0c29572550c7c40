"""Adapters: whole trainers of other libraries as programs whose layouts are compared."""

from simrank.equality.adapters.megatron import Megatron
from simrank.equality.adapters.torchtitan import TorchTitan

__all__ = ["Megatron", "TorchTitan"]
