"""What an operation of torch costs on a device."""

import pytest

from simrank.hardware.load import load_cluster
from simrank.hardware.roofline import started_ps
from simrank.torch.cuda.operations import DeviceOperation, Operand, OperationFlag
from simrank.torch.devices.costs import cost_of, elements_ps, product_ps

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
    return DeviceOperation(name, 0, 0, 0, OperationFlag(flags), tuple(inputs), tuple(outputs))


START_PS, RAMP_PS = 1_740_000, 2_350_000  # Of a kernel that follows another one.


def queued_ps(work_ps):
    """Return the time of a kernel by that of its work."""
    return START_PS + work_ps + min(work_ps, RAMP_PS)


def test_an_elementwise_operation_takes_its_bytes():
    """Two read, one written, at the memory's rate once it is under way; a small one the start."""
    n = 1 << 26
    large = operation("add.Tensor", [tensor(n), tensor(n)], [tensor(n, is_written=True)])
    cost = cost_of(SPEC, large)
    assert cost.bytes_moved == 3 * 4 * n
    work_ps = 3 * 4 * n / SPEC.memory_bandwidth_bytes_per_s * 1e12
    assert cost.duration_ps == pytest.approx(queued_ps(round(work_ps)), rel=1e-6)
    small = operation("add.Tensor", [tensor(8), tensor(8)], [tensor(8, is_written=True)])
    assert cost_of(SPEC, small).duration_ps == pytest.approx(START_PS, rel=0.01)


def test_what_is_changed_in_place_is_read_and_written():
    """An addition in place moves as much as one that makes a tensor; a copy does not read it."""
    n = 1 << 20
    x, y = tensor(n, is_written=True), tensor(n)
    assert cost_of(SPEC, operation("add_.Tensor", [x, y], [])).bytes_moved == 3 * 4 * n
    assert cost_of(SPEC, operation("copy_", [x, y], [])).bytes_moved == 2 * 4 * n


def test_a_broadcast_takes_longer_than_its_bytes():
    """By the offsets of its elements, of half precision and of float32; a reduction by a tail."""
    n = 1 << 12
    rows, whole = tensor(n, 1), tensor(n, n)
    out = tensor(n, n, is_written=True)
    alike = cost_of(SPEC, operation("mul.Tensor", [whole, whole], [out])).duration_ps
    spread = cost_of(SPEC, operation("mul.Tensor", [whole, rows], [out])).duration_ps
    assert spread == queued_ps(elements_ps(SPEC, n * n, 1.29))
    wide, narrow = (tensor(n, each, dtype=BFLOAT16) for each in (n, 1))
    made = tensor(n, n, dtype=BFLOAT16, is_written=True)
    half = cost_of(SPEC, operation("mul.Tensor", [wide, wide], [made])).duration_ps
    half_spread = cost_of(SPEC, operation("mul.Tensor", [wide, narrow], [made])).duration_ps
    assert half_spread == queued_ps(elements_ps(SPEC, n * n, 1.53))
    assert half < half_spread < spread < alike
    one = tensor(n, is_written=True)
    summed = cost_of(SPEC, operation("sum.dim_IntList", [whole], [one])).duration_ps
    copied = cost_of(SPEC, operation("neg", [whole], [out])).duration_ps
    assert summed == pytest.approx(copied / 2 + 5e6, rel=0.05), "half the bytes, and a tail"
    columns = cost_of(SPEC, operation("sum.dim_IntList", [whole], [tensor(1, n, is_written=True)]))
    assert columns.duration_ps > 1.1 * summed


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


def test_a_norm_reads_its_rows_more_than_once():
    """Of the result there is one."""
    rows, columns = 4096, 1024
    x, weight = tensor(rows, columns), tensor(columns)
    out, mean = tensor(rows, columns, is_written=True), tensor(rows, 1, is_written=True)
    cost = cost_of(SPEC, operation("native_layer_norm", [x, weight, weight], [out, mean, mean]))
    read, made = (rows + 2) * columns, rows * columns + 2 * rows
    assert cost.bytes_moved == pytest.approx(4 * (2.1 * read + made), abs=1)


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


def test_float32_products_take_tensor_cores_only_where_the_program_allows_it():
    """TensorFloat-32 has half of bfloat16's rate, as 408 TFLOPS of one H200; IEEE has 51."""
    inputs, out = [tensor(4096, 4096)] * 2, tensor(4096, 4096, is_written=True)
    spec = load_cluster("hgx_h200").device
    exact, rounded = (cost_of(spec, operation("mm", inputs, [out], flags)) for flags in (0, TF32))
    rates = [2 * 4096**3 / each.duration_ps for each in (exact, rounded)]
    assert rates == pytest.approx([51, 408], rel=0.06)
    half = [tensor(4096, 8192, dtype=BFLOAT16), tensor(8192, 4096, dtype=BFLOAT16)]
    assert rounded.duration_ps == cost_of(spec, operation("mm", half, [out])).duration_ps
    narrow, wide = (
        product_ps(spec, "float32", 0, (1, m, 4096, 4096), is_tf32=False) for m in (16, 64)
    )
    assert narrow == wide, "a tile"
    a100 = load_cluster("hgx_a100").device
    flops = 2 * 4096**3 / a100.peak_flops["float32"] * 1e12
    took_ps = cost_of(a100, operation("mm", inputs, [out])).duration_ps
    assert took_ps == pytest.approx(flops, rel=1e-6)


def test_operators_on_lists_take_launches_of_320_chunks():
    """Each with a tail; the gradients of Adam are read only."""
    spec = load_cluster("hgx_h200").device
    n = 320 << 16
    weights = [tensor(n, is_written=True)]
    one = cost_of(spec, operation("_foreach_mul_.Scalar", weights, [])).duration_ps
    two = cost_of(spec, operation("_foreach_mul_.Scalar", weights * 2, [])).duration_ps
    memory_ps = 8 * n / spec.memory_bandwidth_bytes_per_s * 1e12
    assert one == pytest.approx(memory_ps + START_PS + 5.5e6, rel=1e-6)
    assert two == pytest.approx(2 * one, rel=1e-6)
    adam = cost_of(spec, operation("_fused_adamw_", weights * 4, []))
    assert adam.bytes_moved == 7 * 4 * n
    norm = cost_of(spec, operation("_foreach_norm.Scalar", [tensor(n)], [tensor(is_written=True)]))
    assert norm.bytes_moved == 4 * n + 4


def test_float32_is_rounded_as_vectors():
    """To half precision; what is widened has offsets computed."""
    n = 1 << 26
    narrow, wide = tensor(n, dtype=BFLOAT16), tensor(n)
    rounded, widened = (
        cost_of(SPEC, operation("copy_", [to._replace(is_written=True), source], [])).duration_ps
        for to, source in ((narrow, wide), (wide, narrow))
    )
    assert rounded == queued_ps(-(-6 * n * 10**12 // SPEC.memory_bandwidth_bytes_per_s))
    assert widened == queued_ps(elements_ps(SPEC, n, 1.29))


def test_a_copy_from_the_host_takes_the_link():
    """Not the device's memory."""
    n = 1 << 28
    copy = operation("copy_", [tensor(n, is_written=True)], [], flags=1)
    expected = 4 * n / SPEC.host_link_bandwidth_bytes_per_s * 1e12
    assert cost_of(SPEC, copy).duration_ps == pytest.approx(expected, rel=1e-6)


TF32 = int(OperationFlag.TF32)


def convolved(name, inputs, outputs, flags=TF32):
    """Return the time of a convolution without what every kernel takes, in picoseconds."""
    cost = cost_of(SPEC, operation(name, inputs, outputs, flags))
    return cost.duration_ps - 2 * started_ps(0)


X, WEIGHT = tensor(8, 64, 56, 56), tensor(256, 64, 3, 3)
OUT = tensor(8, 256, 56, 56, is_written=True)
FLOPS = 2 * 8 * 256 * 56 * 56 * 64 * 9


def test_a_convolution_takes_its_arithmetic():
    """Channels and window per output, at a share of the peak; in float32 of TensorFloat-32's."""
    took_ps = convolved("convolution", [X, WEIGHT], [OUT])
    assert took_ps == pytest.approx(FLOPS / (0.13 * SPEC.peak_flops["float16"]) * 1e12, rel=1e-3)
    half = [tensor(*each.sizes, dtype=BFLOAT16) for each in (X, WEIGHT)]
    half_ps = convolved("convolution", half, [OUT], flags=0)
    assert half_ps == pytest.approx(took_ps * 0.13 / 0.5, rel=1e-3)
    exact_ps = convolved("convolution", [X, WEIGHT], [OUT], flags=0)
    assert exact_ps == pytest.approx(FLOPS / (0.5 * SPEC.peak_flops["float32"]) * 1e12, rel=1e-3)


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
