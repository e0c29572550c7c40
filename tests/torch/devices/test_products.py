"""Operators that multiply: the count of their operations, and times that no device beats."""

import pytest
import torch
from torch.utils import flop_counter

import simrank
from benches import products_published
from simrank.hardware.load import load_cluster
from simrank.hardware.roofline import BY_BYTES
from simrank.torch.devices import costs, products

from .test_costs import BFLOAT16, operation, tensor

SPEC = load_cluster("hgx_h100").device
L, F = torch.linalg, torch.nn.functional
BF, SINGLE, DOUBLE, COMPLEX = torch.bfloat16, torch.float32, torch.float64, torch.complex64
HALF, WIDE = torch.float16, torch.complex128
EIGHT_BIT = torch.float8_e4m3fn


def made(*sizes, dtype=SINGLE):
    """Return a tensor on the device; of small types without a random fill."""
    if dtype.is_floating_point and dtype.itemsize > 1:
        return torch.randn(sizes, device="cuda", dtype=dtype)
    return torch.zeros(sizes, device="cuda", dtype=dtype)


def square(n, dtype):
    return made(n, n, dtype=dtype)


def ends(num, last):
    """Return the offsets of even groups."""
    step = last // num
    return torch.arange(step, last + 1, step, device="cuda", dtype=torch.int32)


# By operator: a call with matrices of n rows, and its operations.
CALLS = {
    "mm": (lambda n: made(n, n, dtype=BF) @ made(n, n, dtype=BF), lambda n: 2 * n**3),
    "mm of complex": (lambda n: square(n, COMPLEX) @ square(n, COMPLEX), lambda n: 8 * n**3),
    "mm of float64": (lambda n: square(n, DOUBLE) @ square(n, DOUBLE), lambda n: 2 * n**3),
    "addmm in place": (
        lambda n: made(n, n).addmm_(made(n, n), made(n, n)), lambda n: 2 * n**3,
    ),
    "baddbmm in place": (
        lambda n: made(2, n, n).baddbmm_(made(2, n, n), made(2, n, n)), lambda n: 4 * n**3,
    ),
    "addbmm": (
        lambda n: torch.addbmm(made(n, n), made(3, n, n), made(3, n, n)), lambda n: 6 * n**3,
    ),
    "addmv": (lambda n: torch.addmv(made(n), made(n, n), made(n)), lambda n: 2 * n * n),
    "grouped rows": (
        lambda n: torch._grouped_mm(
            made(4 * n, n, dtype=BF), made(4, n, n, dtype=BF), ends(4, 4 * n)
        ),
        lambda n: 8 * n**3,
    ),
    "grouped sums": (
        lambda n: torch._grouped_mm(
            made(n, 4 * n, dtype=BF), made(4 * n, n, dtype=BF), ends(4, 4 * n)
        ),
        lambda n: 8 * n**3,
    ),
    "grouped batches": (
        lambda n: torch._grouped_mm(made(4, n, n, dtype=BF), made(4, n, n, dtype=BF)),
        lambda n: 8 * n**3,
    ),
    "scaled": (
        lambda n: torch._scaled_mm(
            square(n, EIGHT_BIT), square(n, EIGHT_BIT).t(), made(), made(), out_dtype=BF
        ),
        lambda n: 2 * n**3,
    ),
    "weights of int8": (
        lambda n: torch._weight_int8pack_mm(
            made(n, n, dtype=BF), made(n, n, dtype=torch.int8), made(n, dtype=BF)
        ),
        lambda n: 2 * n**3,
    ),
    "integers": (
        lambda n: torch._int_mm(made(n, n, dtype=torch.int8), made(n, n, dtype=torch.int8)),
        lambda n: 2 * n**3,
    ),
    "distances": (lambda n: torch.cdist(made(n, n), made(n, n), p=1), lambda n: 3 * n**3),
    "distances within": (
        lambda n: F.pdist(made(n, n)), lambda n: 1.5 * n * n * (n - 1),
    ),
    "mm of float16": (lambda n: square(n, HALF) @ square(n, HALF), lambda n: 2 * n**3),
    "mm of float32": (lambda n: square(n, SINGLE) @ square(n, SINGLE), lambda n: 2 * n**3),
    "mm of complex128": (lambda n: square(n, WIDE) @ square(n, WIDE), lambda n: 8 * n**3),
    "linear of three dimensions": (
        lambda n: F.linear(made(2, n, n), made(n, n), made(n)),
        lambda n: 4 * n**3,
    ),
    "einsum": (
        lambda n: torch.einsum("bij,bkj->bik", made(2, n, n), made(2, n, n)), lambda n: 4 * n**3,
    ),
    "tensordot": (lambda n: torch.tensordot(made(n, n), made(n, n), 1), lambda n: 2 * n**3),
    "power": (lambda n: L.matrix_power(made(n, n), 2), lambda n: 2 * n**3),
    "exponential": (lambda n: L.matrix_exp(made(n, n)), lambda n: 20 * n**3),
    "covariance": (lambda n: torch.cov(made(n, n)), lambda n: 2 * n**3),
    "bilinear": (
        lambda n: F.bilinear(made(n, n), made(n, n), made(1, n, n)),
        lambda n: 2 * n**3,
    ),
    "cholesky solve": (
        lambda n: torch.cholesky_solve(made(n, n), made(n, n)), lambda n: 2 * n**3,
    ),
    "cholesky inverse": (lambda n: torch.cholesky_inverse(made(n, n)), lambda n: 2 * n**3 / 3),
    "lu solve": (
        lambda n: L.lu_solve(made(n, n), ends(n, n), made(n, n)),
        lambda n: 2 * n**3,
    ),
    "ldl": (lambda n: L.ldl_factor_ex(made(n, n))[0], lambda n: n**3 / 3),
    "reflections": (
        lambda n: L.householder_product(made(n, n), made(n)), lambda n: 4 * n**3 / 3,
    ),
    "product with reflections": (
        lambda n: torch.ormqr(made(n, n), made(n), made(n, n)), lambda n: 4 * n**3,
    ),
    "determinant": (lambda n: L.det(made(n, n)), lambda n: 2 * n**3 / 3),
    "eig": (lambda n: L.eig(made(n, n)), lambda n: 25 * n**3),
    "eigvals": (lambda n: L.eigvals(made(n, n)), lambda n: 10 * n**3),
    "cholesky": (lambda n: L.cholesky_ex(made(n, n))[0], lambda n: n**3 / 3),
    "lu": (lambda n: L.lu_factor_ex(made(n, n))[0], lambda n: 2 * n**3 / 3),
    "inverse": (lambda n: L.inv_ex(made(n, n))[0], lambda n: 2 * n**3),
    "solve": (lambda n: L.solve_ex(made(n, n), made(n, n))[0], lambda n: 2 * n**3 / 3 + 2 * n**3),
    "triangle": (
        lambda n: L.solve_triangular(made(n, n), made(n, n), upper=True), lambda n: n**3,
    ),
    "qr": (lambda n: L.qr(made(n, n)), lambda n: 8 * n**3 / 3),
    "eigh": (lambda n: L.eigh(made(n, n)), lambda n: 9 * n**3),
    "eigvalsh": (lambda n: L.eigvalsh(made(n, n)), lambda n: 4 * n**3 / 3),
    "svd": (lambda n: L.svd(made(n, n)), lambda n: 22 * n**3),
    "encoder": (
        lambda n: torch.nn.TransformerEncoderLayer(n, 8, 4 * n, batch_first=True)
        .cuda().eval()(made(2, n, n)),
        lambda n: 2 * 2 * n * 12 * n * n + 2 * 4 * n * n * n,
    ),
    "convolution": (
        lambda n: F.conv2d(made(1, n, 16, 16), made(n, n, 3, 3), padding=1),
        lambda n: 2 * 256 * 9 * n * n,
    ),
    "convolution of one dimension": (
        lambda n: F.conv1d(made(2, n, 64), made(n, n, 3), padding=1),
        lambda n: 2 * 2 * 64 * 3 * n * n,
    ),
    "transposed convolution": (
        lambda n: F.conv_transpose2d(made(1, n, 16, 16), made(n, n, 2, 2), None, 2),
        lambda n: 2 * 256 * 4 * n * n,
    ),
    "convolution of groups": (
        lambda n: F.conv2d(made(1, n, 16, 16), made(n, 1, 3, 3), None, 1, 1, 1, n),
        lambda n: 2 * 256 * 9 * n,
    ),
    "attention": (
        lambda n: F.scaled_dot_product_attention(
            *[made(2, 4, n, 64, dtype=BF)] * 3
        ),
        lambda n: 2 * 4 * 4 * n * n * 64,
    ),
}  # fmt: skip


class Seen:
    """Notes the operation with most FLOPs."""

    def __init__(self):
        self.most = None

    def on_operation(self, operation):
        if operation.kind == "kernel" and operation.flops > (self.most.flops if self.most else 0):
            self.most = operation

    def on_task_switch(self, *_):
        pass

    on_host = on_transfer = on_task_switch


@pytest.mark.parametrize("n", [128, 1024, 8192])
@pytest.mark.parametrize("name", CALLS)
def test_no_product_beats_the_peak_of_its_device(name, n):
    """In runs without values, by a formula that says what was computed."""
    call, count = CALLS[name]
    seen, counted = Seen(), []

    def work(rank):
        with torch.no_grad(), flop_counter.FlopCounterMode(display=False) as counter:
            call(n)
        counted.append(counter.get_total_flops())
        torch.cuda.synchronize()
        seen.most = None  # torch takes other operators within the mode (eigvalsh).
        with torch.no_grad():
            call(n)
        torch.cuda.synchronize()

    with simrank.Context("hgx_h100", data=False, unknown=0.0) as ctx:
        ctx.observe(seen)
        ctx.multiprocessing.spawn(work, nprocs=1, share_args=True)
    found = seen.most
    assert found is not None, "no operation is charged for products"
    is_many = name == "encoder"  # One operator that holds several products.
    assert found.flops == pytest.approx(count(n), rel=0.01 if is_many else 1e-6)
    if counted[0] and "complex" not in name:  # torch counts these as if they were real.
        assert found.flops == counted[0]
    took_s = (found.complete_ps - found.start_ps) / 1e12
    assert found.flops / took_s <= max(SPEC.peak_flops.values())


def test_an_operator_of_another_library_has_the_formula_that_a_program_registers():
    """With torch's `register_flop_formula`; one that wants more than tensors is not used."""
    library = torch.library.Library("simrank_test_products", "FRAGMENT")
    library.define("product(Tensor a, Tensor b) -> Tensor")
    packet = torch.ops.simrank_test_products.product
    mine = operation("simrank_test_products::product", [tensor(8, 4), tensor(4, 2)], [tensor(8, 2)])
    assert products.multiplied(mine) == []
    flop_counter.register_flop_formula(packet)(lambda a, b, out_shape=None: 7 * a[0] * b[-1])
    products._formula_of.cache_clear()
    assert [each.flops for each in products.multiplied(mine)] == [7 * 8 * 2]
    flop_counter.flop_registry[packet] = flop_counter.shape_wrapper(
        lambda a, b, groups, out_shape=None: 1
    )
    products._formula_of.cache_clear()
    assert products.multiplied(mine) == []


def test_what_may_compute_more_than_its_bytes_is_said():
    """A sort, and no addition, copy or sum."""
    x = tensor(1 << 20)
    for name, is_said in (("sort", True), ("topk", True), ("add.Tensor", False), ("sum", False)):
        assert costs.cost_of(SPEC, operation(name, [x], [x])).basis == (BY_BYTES if is_said else "")
    assert not costs.cost_of(SPEC, operation("mm", [tensor(8, 8), tensor(8, 8)], [])).basis


def test_products_of_integers_that_are_packed_have_the_shape_of_what_they_make():
    """The weight's own shape says nothing."""
    a, out = tensor(16, 256, dtype=BFLOAT16), tensor(16, 512, dtype=BFLOAT16, is_written=True)
    packed = tensor(64, 2, 32, 4, dtype=3)
    (found,) = products.multiplied(operation("_weight_int4pack_mm", [a, packed], [out]))
    assert found.product == (1, 16, 512, 256)


def test_names_of_operators_in_place_and_with_overloads_are_one():
    """A name with two underscores at its end is no such name."""
    assert products.base_name("addmm_") == products.base_name("addmm.out") == "addmm"
    assert products.base_name("__and__.Tensor") == "__and__"


def test_charges_for_groups_eight_bits_and_packed_sequences_are_what_was_published(capsys):
    """Within a quarter in the mean of each kind, of 246 rows of 24 sources."""
    assert products_published.main() == 0
    assert "varlen attention: 64 rows" in capsys.readouterr().out
