"""Inline assembly of `tl.inline_asm_elementwise`: PTX for signals and small numerics.

Read `parse` (text to instructions), `run` (lanes of one snippet), then `compute` and `convert`
(what instructions give) and `access` (what they do to memory).

Source:
    NVIDIA, "Parallel Thread Execution ISA", version 8.7.
"""

from simrank.kernels.ptx.inline import inline_asm_elementwise

__all__ = ["inline_asm_elementwise"]
