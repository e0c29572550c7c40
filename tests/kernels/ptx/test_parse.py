"""What of assembly is not known is refused by name."""

import numpy as np
import pytest
import triton.language as tl

from ..assembly import applied

INTS = np.array([0, 1, -1, 7, -8, 123456789, -(2**31), 2**31 - 1], np.int32)


@pytest.mark.parametrize(
    ("asm", "constraints", "named"),
    [
        ("mbarrier.init.shared.b64 [$1], 1;", "=r,r", "mbarrier.init.shared.b64"),
        ("shfl.sync.bfly.b32 $0, $1, 1, 31, -1;", "=r,r", "shfl.sync.bfly.b32"),
        ("ld.shared.u32 $0, [$1];", "=r,r", "ld.shared.u32"),
        ("mov.u32 $0, %lanemask_lt;", "=x,r", "the constraint '=x'"),
        ("bra nowhere; mov.u32 $0, $1;", "=r,r", "'nowhere'"),
    ],
)
def test_what_is_not_emulated_is_refused_by_name(run, asm, constraints, named):
    """Instead of a wrong number."""
    with pytest.raises(Exception, match="inline assembly") as caught:
        applied(run, asm, INTS, kind=tl.int32, constraints=constraints)
    assert named in str(caught.value)
