"""Kernels of Helion, which writes Triton's: its own host code and launcher, unchanged."""

import shutil

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
helion = pytest.importorskip("helion", reason="helion is not installed")
if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)

import helion.language as hl  # noqa: E402

import simrank  # noqa: E402

pytestmark = pytest.mark.slow


@helion.kernel(autotune_effort="none")
def scaled_rows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows, _ = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(rows):
        values = x[tile, :]
        mean = (values * values).mean(-1, keepdim=True)
        out[tile, :] = values * torch.rsqrt(mean + 1e-6) * weight[None, :]
    return out


@helion.kernel(autotune_effort="none")
def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    m, k = a.size()
    _, n = b.size()
    out = torch.empty([m, n], dtype=a.dtype, device=a.device)
    for row, column in hl.tile([m, n]):
        total = hl.zeros([row, column], dtype=torch.float32)
        for inner in hl.tile(k):
            total = torch.addmm(total, a[row, inner], b[inner, column])
        out[row, column] = total
    return out


def test_kernels_of_helion_equal_torch():
    """A row-wise norm and a product in tiles; sizes that fill no tile."""
    results = {}

    def program(rank):
        x, weight = torch.randn(33, 80, device="cuda"), torch.rand(80, device="cuda")
        norm = torch.nn.functional.rms_norm(x, (80,), weight, eps=1e-6)
        results["norm"] = torch.allclose(scaled_rows(x, weight), norm, atol=1e-5)
        a, b = torch.randn(48, 40, device="cuda"), torch.randn(40, 56, device="cuda")
        results["product"] = torch.allclose(product(a, b), a @ b, atol=1e-4)

    with simrank.Context.for_ranks(1) as context:
        context.multiprocessing.spawn(program, (), 1, share_args=True)
    assert results == {"norm": True, "product": True}
