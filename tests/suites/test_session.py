"""Sessions of pytest on ranks."""

import shutil
import time
from unittest import mock

import pytest

import simrank
from simrank.suites.session import _text_of_copy

torch = pytest.importorskip("torch")


@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_reports_print_copies_of_tensors():
    """Printing a tensor on a device waits for each of its elements, some microseconds."""

    def program(rank):
        shown = torch.arange(100.0, device="cuda")
        torch.cuda.synchronize()
        start_s = time.perf_counter()
        with mock.patch("torch._tensor_str._tensor_str", _text_of_copy()):
            text = str(shown)
        after_s = time.perf_counter()
        assert text == str(shown)
        assert after_s - start_s < 50e-6
        assert time.perf_counter() - after_s > 500e-6

    with simrank.Context.for_ranks(1) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=1)
