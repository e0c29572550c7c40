"""Add `typing.override` to Python 3.11: Megatron-LM asks for Python 3.12, where typing has it."""

import typing

import typing_extensions

if not hasattr(typing, "override"):
    typing.override = typing_extensions.override
