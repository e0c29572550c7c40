"""PyTorch's own test classes on simulated ranks."""

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("expecttest", reason="PyTorch's test classes need expecttest")

SUITE = """
import unittest
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import (
    MultiProcContinuousTest, MultiProcessTestCase, MultiThreadedTestCase,
)

class Counter:
    value = 0

class Processes(MultiProcessTestCase):
    world_size = 3

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def start(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)

    def test_sum(self):
        self.start()
        Counter.value += 1
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        self.assertEqual(tensor, torch.full((2,), 3.0))
        self.assertEqual(Counter.value, 1)

    def test_wrong(self):
        self.start()
        self.assertEqual(self.rank, 0)

    def test_skipped(self):
        self.skipTest("on purpose")

    def test_exit(self):
        self.start()
        raise SystemExit(7)

class Threads(MultiThreadedTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_gather(self):
        outputs = [torch.zeros(1) for _ in range(2)]
        dist.all_gather(outputs, torch.tensor([float(self.rank)]))
        self.assertEqual(outputs, [torch.zeros(1), torch.ones(1)])

class Continuous(MultiProcContinuousTest):
    world_size = 2

    @classmethod
    def backend_str(cls):
        return "gloo"

    def test_pg(self):
        self.assertEqual(self.pg.size(), 2)
        self.assertEqual(dist.get_rank(), self.rank)
"""


def test_each_of_the_three_classes_passes_fails_and_skips_as_it_should(tmp_path):
    """By one line in the conftest; class attributes and globals are each rank's own."""
    (tmp_path / "test_suite.py").write_text(textwrap.dedent(SUITE))
    line = "import simrank.torch.testing; simrank.torch.testing.simulate()\n"
    (tmp_path / "conftest.py").write_text(line)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", str(tmp_path)]
    out = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path).stdout
    for name in ("test_sum", "test_gather", "test_pg"):
        assert f"PASSED test_suite.py::{_class(name)}::{name}" in out, out
    assert "FAILED test_suite.py::Processes::test_wrong" in out
    assert "FAILED test_suite.py::Processes::test_exit" in out
    assert "1 skipped" in out


def _class(name):
    return {"test_sum": "Processes", "test_gather": "Threads", "test_pg": "Continuous"}[name]
