"""A Triton kernel that spins on a flag."""

import triton
import triton.language as tl


@triton.jit
def spin_until_set(flag):
    while tl.load(flag, volatile=True) == 0:
        pass
