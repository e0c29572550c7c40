"""The subset of PTX used in `tl.inline_asm_elementwise`: signals and small numerics.

Read `parse` (text to instructions), `run` (lanes of one snippet), then `compute` (results of
instructions) and `access` (memory).

Source:
    NVIDIA, "Parallel Thread Execution ISA", version 8.7.
"""

from simrank.kernels.ptx.inline import inline_asm_elementwise

__all__ = ["inline_asm_elementwise"]
