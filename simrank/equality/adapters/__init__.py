"""Adapters: whole trainers of other libraries as programs whose layouts are compared."""

from simrank.equality.adapters.huggingface import HuggingFace
from simrank.equality.adapters.lightning import Lightning
from simrank.equality.adapters.megatron import Megatron
from simrank.equality.adapters.torchtitan import TorchTitan

__all__ = ["HuggingFace", "Lightning", "Megatron", "TorchTitan"]
