"""All of torch's operators, and all half precision kernels."""

from __future__ import annotations

import pytest
import torch

from simrank.torch import cuda as simulated

pytestmark = pytest.mark.slow

# What is refused, and a part of the error's text, which names it.
REFUSED = {
    "sparse.sampled_addmm": "SparseCsrCUDA",
    "sparse.mm.reduce": "SparseCsrCUDA",
}


@pytest.mark.timeout(600)
def test_operators_equal_the_host(capsys):
    """Results and gradients of at least 99 % of the operators; the others are refused by name."""
    from tests.torch.cuda import sweep

    with simulated.standalone(1):
        right, wrong, compared = sweep.sweep()
    total = right + len(wrong)
    with capsys.disabled():
        print(f"\n{right} of {total} operators equal the host in {compared} comparisons")  # noqa: T201 - the figure.
    assert compared > 4000
    assert right >= 0.99 * total
    expected = REFUSED | sweep.NOT_COMPARED
    assert wrong.keys() == expected.keys()
    for name, text in expected.items():
        assert text in wrong[name]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype, capsys):
    """No operator's result is further than two units in the last place from fp32 rounded once."""
    from tests.torch.cuda import half

    with simulated.standalone(1):
        audit = half.audit(dtype)
    unit = torch.finfo(dtype).eps
    wrong = {name: error / unit for name, error in audit.worst.items() if error > 2.5 * unit}
    with capsys.disabled():
        print(f"\n{audit.count} results of {len(audit.worst)} operators in {dtype}")  # noqa: T201 - the figure.
    assert audit.count > 10_000
    assert wrong == {}
