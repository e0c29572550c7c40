"""Kernels as a page."""

import pytest

from simrank.trace.kernel_page import report_html

profile = pytest.importorskip("simrank.kernels.machine.statistics")


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
