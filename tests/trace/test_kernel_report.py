"""Lines of a kernel with what they take of the device."""

import pytest

from simrank.trace.kernel_report import PARTS, report_html, report_text, source_lines, summary

profile = pytest.importorskip("simrank.kernels.machine.statistics")


def one(**lines):
    """Return a kernel of three lines, with what the named ones did."""
    found = profile.KernelProfile("k", "k.py", 10, ["def k():", "    a", "    b"])
    for name, line in lines.items():
        found.lines["k.py", int(name[1:])] = line
    return found


def test_a_resource_is_shared_out_by_what_lines_did_with_it():
    """Of 90 ps of tensor cores two thirds go to who had two thirds of the operations."""
    kernel = one(
        L11=profile.Line(flops=2, local_bytes=100, operations=[8, 0, 0]),
        L12=profile.Line(flops=1, operations=[0, 2, 5]),
    )
    kernel.parts_ps = {"tensor": 90, "vector": 32, "special": 7, "memory": 50, "L2": 20, "links": 0}
    first, second, third = source_lines(kernel)
    assert first.parts_ps == {}
    assert second.parts_ps == {"tensor": 60, "vector": 16, "memory": 50, "L2": 20}
    assert third.parts_ps == {"tensor": 30, "vector": 16, "special": 7}
    assert second.texts["most time"].endswith("tensor")
    whole = {part: sum(row.parts_ps.get(part, 0) for row in (second, third)) for part in PARTS}
    assert whole == {**kernel.parts_ps, "waiting": 0}


def test_waiting_is_that_of_a_program_in_the_mean():
    """Four programs that were parked for 20 ps each waited for 20."""
    kernel = one(L11=profile.Line(parked_ps=80))
    kernel.num_programs = 4
    assert [row.parts_ps.get("waiting") for row in source_lines(kernel)] == [None, 20, None]
    assert "waiting 20 ps" in summary(kernel)[1]


@pytest.mark.parametrize(
    ("tensor_ps", "per_sm", "busiest", "said"),
    [
        (0, 2, 1.5, None),
        (9, 1, 1.0, "an SM holds one program at a time"),
        (9, 3, 1.04, "an SM holds 3 programs at a time"),
        (9, 2, 1.5, "the busiest has 1.50 times the mean work: give long programs the lowest ids"),
    ],
)
def test_an_author_is_told_how_programs_lie_on_the_sms(tensor_ps, per_sm, busiest, said):
    """With what to do where some end long before others; of kernels with dots alone."""
    kernel = one()
    kernel.parts_ps, kernel.per_sm, kernel.busiest_share = {"tensor": tensor_ps}, per_sm, busiest
    lines = summary(kernel)[2:]
    assert len(lines) == (said is not None)
    if said is not None:
        assert said in lines[0]
        assert ("lowest ids" in lines[0]) == (busiest == 1.5)


def test_an_author_is_told_what_no_line_shows():
    """That loads are too few, and that registers do not suffice; with what to do."""
    kernel = one()
    assert len(summary(kernel)) == 2
    kernel.limiters, kernel.num_spilled = {"latency": 1}, 12
    loads, registers = summary(kernel)[2:]
    assert "more stages" in loads
    assert "12 registers of each thread are spilled" in registers


def test_lines_of_functions_elsewhere_come_last():
    """A device function's lines stand behind the kernel's own."""
    kernel = one(L12=profile.Line(flops=1))
    kernel.lines["other.py", 3] = profile.Line(num_atomics=4)
    rows = list(source_lines(kernel))
    assert [row.number for row in rows] == [10, 11, 12, 3]
    assert rows[-1].texts["atomics"] == "4"


def test_columns_that_nobody_uses_are_left_out():
    """A kernel without links has no column for them."""
    text = report_text([one(L11=profile.Line(local_bytes=2048, num_lanes=8))])
    head = text.splitlines()[2]
    assert "local" in head
    assert "links" not in head
    assert "atomics" not in head


# ---- kernels as a page ----


@pytest.fixture
def kernel():
    """A kernel that computed and moved something on a device of 1 TFLOPS and 1 TB/s."""
    found = profile.KernelProfile("k<1>", "k.py", 10, ["def k():", "    a < b", "    c"])
    found.lines["k.py", 11] = profile.Line(flops=4_000, local_bytes=1_000)
    found.parts_ps = {"tensor": 4_000_000, "memory": 1_000_000}
    found.duration_ps, found.hbm_bytes, found.num_launches = 8_000, 1_000, 1
    found.roof = profile.Roof("some device", 1e12, 1e12)
    return found


def test_every_line_has_a_bar_and_its_source(kernel):
    """Escaped, as all text is."""
    page = report_html([kernel])
    assert "11  a &lt; b: tensor 4 us" in page
    assert "11  a &lt; b: memory 1 us" in page
    assert "<h2>k&lt;1&gt;</h2>" in page
    assert "<script" not in page


def test_the_kernel_stands_below_its_roof(kernel):
    """Four operations per byte on a device whose ridge is at one; at half of its peak."""
    page = report_html([kernel])
    assert "k&lt;1&gt;: 4 operations per byte, 0.5 TFLOPS" in page
    assert "roof of some device" in page
    assert "1 per byte: 1 TFLOPS" in page


def test_a_kernel_that_moves_nothing_has_no_roofline(kernel):
    """Nor one that was never launched."""
    kernel.hbm_bytes = 0
    assert "Roofline" not in report_html([kernel])
