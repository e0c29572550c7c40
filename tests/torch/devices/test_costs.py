"""What an operation of torch costs on a device."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from simrank.hardware.load import load_cluster
from simrank.hardware.roofline import started_ps
from simrank.torch.cuda.operations import Operand, Operation, OperationFlag
from simrank.torch.devices.costs import cost_of, offsets_ps

SPEC = load_cluster("hgx_h100").device
FLOAT32, BFLOAT16 = 6, 15


def tensor(*sizes, dtype=FLOAT32, strides=None, is_written=False):
    """Return an operand, contiguous unless it has strides."""
    if strides is None:
        strides, step = [], 1
        for size in reversed(sizes):
            strides.insert(0, step)
            step *= size
    return Operand(0, dtype, sizes, tuple(strides), is_written)


def operation(name, inputs, outputs, flags=0):
    """Return an operation."""
    return Operation(name, 0, 0, 0, OperationFlag(flags), tuple(inputs), tuple(outputs))


def test_an_elementwise_operation_takes_its_bytes():
    """Two read, one written, at the memory's rate once it is under way; a small one the start."""
    n = 1 << 26
    large = operation("add.Tensor", [tensor(n), tensor(n)], [tensor(n, is_written=True)])
    cost = cost_of(SPEC, large)
    assert cost.bytes_moved == 3 * 4 * n
    work_ps = 3 * 4 * n / SPEC.memory_bandwidth_bytes_per_s * 1e12
    assert cost.duration_ps == pytest.approx(started_ps(round(work_ps)), rel=1e-6)
    small = operation("add.Tensor", [tensor(8), tensor(8)], [tensor(8, is_written=True)])
    assert cost_of(SPEC, small).duration_ps == pytest.approx(started_ps(0), rel=0.01)


def test_what_is_changed_in_place_is_read_and_written():
    """An addition in place moves as much as one that makes a tensor; a copy does not read it."""
    n = 1 << 20
    x, y = tensor(n, is_written=True), tensor(n)
    assert cost_of(SPEC, operation("add_.Tensor", [x, y], [])).bytes_moved == 3 * 4 * n
    assert cost_of(SPEC, operation("copy_", [x, y], [])).bytes_moved == 2 * 4 * n


def test_a_broadcast_takes_longer_than_its_bytes():
    """By the offsets of its elements; a reduction by half the rate."""
    n = 1 << 12
    rows, whole = tensor(n, 1), tensor(n, n)
    out = tensor(n, n, is_written=True)
    alike = cost_of(SPEC, operation("mul.Tensor", [whole, whole], [out])).duration_ps
    spread = cost_of(SPEC, operation("mul.Tensor", [whole, rows], [out])).duration_ps
    assert spread == started_ps(offsets_ps(SPEC, n * n))
    half = cost_of(SPEC, operation("mul.Tensor", [tensor(n, n, dtype=BFLOAT16)] * 2,
                                   [tensor(n, n, dtype=BFLOAT16, is_written=True)]))  # fmt: skip
    assert half.duration_ps < spread < alike
    one = tensor(n, is_written=True)
    summed = cost_of(SPEC, operation("sum.dim_IntList", [whole], [one])).duration_ps
    copied = cost_of(SPEC, operation("neg", [whole], [out])).duration_ps
    assert summed == pytest.approx(copied, rel=0.01), "as many bytes at the full rate"


def test_what_is_picked_by_index_costs_what_is_picked():
    """Rows of an embedding, not its table; and where rows are put, they are read and written."""
    table, index = tensor(32000, 1024), tensor(512, dtype=4)
    rows = tensor(512, 1024, is_written=True)
    picked = cost_of(SPEC, operation("index_select", [table, index], [rows]))
    assert picked.bytes_moved == 2 * 4 * 512 * 1024 + 8 * 512
    whole = tensor(32000, 1024, is_written=True)
    put = cost_of(SPEC, operation("index_add_", [whole, index, tensor(512, 1024)], []))
    assert put.bytes_moved == 3 * 4 * 512 * 1024 + 8 * 512
    filled = cost_of(SPEC, operation("_index_put_impl_", [whole, index], []))
    assert filled.bytes_moved > 2 * 4 * 32000 * 1024, "nothing says how much a number fills"


def test_a_norm_reads_its_rows_twice():
    """Of the result there is one."""
    rows, columns = 4096, 1024
    x, weight = tensor(rows, columns), tensor(columns)
    out, mean = tensor(rows, columns, is_written=True), tensor(rows, 1, is_written=True)
    cost = cost_of(SPEC, operation("native_layer_norm", [x, weight, weight], [out, mean, mean]))
    assert cost.bytes_moved == 4 * (2 * (rows + 2) * columns + rows * columns + 2 * rows)


def test_an_expanded_operand_is_read_once():
    """A bias on many rows."""
    rows, columns = 4096, 1024
    bias = tensor(rows, columns, strides=(0, 1))
    out = tensor(rows, columns, is_written=True)
    cost = cost_of(SPEC, operation("copy_", [out, bias], []))
    assert cost.bytes_moved == 4 * columns * (rows + 1)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("mm", [tensor(512, 1024, dtype=BFLOAT16), tensor(1024, 256, dtype=BFLOAT16)]),
        ("addmm", [tensor(256, dtype=BFLOAT16), tensor(512, 1024, dtype=BFLOAT16),
                   tensor(1024, 256, dtype=BFLOAT16)]),
        ("bmm", [tensor(1, 512, 1024, dtype=BFLOAT16), tensor(1, 1024, 256, dtype=BFLOAT16)]),
    ],
)  # fmt: skip
def test_products_take_what_was_measured_for_their_shape(name, inputs):
    """Whichever operator they are."""
    from simrank.hardware.roofline import library_product_ps

    out = tensor(512, 256, dtype=BFLOAT16, is_written=True)
    measured = library_product_ps(SPEC, "bfloat16", (1, 512, 256, 1024))
    assert cost_of(SPEC, operation(name, inputs, [out])).duration_ps == measured


def test_a_copy_from_the_host_takes_the_link():
    """Not the device's memory."""
    n = 1 << 28
    copy = operation("copy_", [tensor(n, is_written=True)], [], flags=1)
    expected = 4 * n / SPEC.host_link_bandwidth_bytes_per_s * 1e12
    assert cost_of(SPEC, copy).duration_ps == pytest.approx(expected, rel=1e-6)


def convolved(name, inputs, outputs):
    """Return the time of a convolution without what every kernel takes, in picoseconds."""
    return cost_of(SPEC, operation(name, inputs, outputs)).duration_ps - 2 * started_ps(0)


X, WEIGHT = tensor(8, 64, 56, 56), tensor(256, 64, 3, 3)
OUT = tensor(8, 256, 56, 56, is_written=True)
FLOPS = 2 * 8 * 256 * 56 * 56 * 64 * 9


def test_a_convolution_takes_its_arithmetic():
    """Channels and window per output, at a share of the peak; in float32 of TensorFloat-32's."""
    took_ps = convolved("convolution", [X, WEIGHT], [OUT])
    assert took_ps == pytest.approx(FLOPS / (0.13 * SPEC.peak_flops["float16"]) * 1e12, rel=1e-3)
    half = [tensor(*each.sizes, dtype=BFLOAT16) for each in (X, WEIGHT)]
    assert convolved("convolution", half, [OUT]) == pytest.approx(took_ps * 0.13 / 0.5, rel=1e-3)


def test_the_backward_of_a_convolution_takes_as_much_for_each_gradient():
    """Whatever its order of operands; the bias's gradient is none."""
    forward_ps = convolved("convolution", [X, WEIGHT], [OUT])
    gradients = [tensor(*each.sizes, is_written=True) for each in (X, WEIGHT)]
    inputs = [tensor(*OUT.sizes), X, WEIGHT]
    bias = tensor(256, is_written=True)
    both_ps = convolved("convolution_backward", inputs, [*gradients, bias])
    assert both_ps == pytest.approx(2 * forward_ps, rel=1e-3)
    one_ps = convolved("convolution_backward", inputs, gradients[1:])
    assert one_ps == pytest.approx(forward_ps, rel=1e-3)


def test_a_transposed_convolution_takes_its_window_per_input():
    """Its weight has the channels of what is convolved first."""
    source, weight = tensor(8, 256, 28, 28), tensor(256, 64, 4, 4)
    out = tensor(8, 64, 56, 56, is_written=True)
    expected = 2 * 8 * 256 * 28 * 28 * 64 * 16 / (0.13 * SPEC.peak_flops["float16"]) * 1e12
    took_ps = convolved("convolution", [source, weight], [out])
    assert took_ps == pytest.approx(expected, rel=1e-3)
