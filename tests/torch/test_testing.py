"""PyTorch's own test classes on simulated ranks."""

import subprocess
import sys
import textwrap

import pytest
import torch

from simrank.torch import testing

pytest.importorskip("expecttest", reason="PyTorch's test classes need expecttest")

SUITE = """
import unittest
from datetime import timedelta

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

    def test_exit_of_the_last(self):
        self.start()
        if self.rank == 2:
            raise SystemExit(7)

    def test_skipped_by_the_last(self):
        if self.rank == 2:
            self.skipTest("on purpose")

SEEN = []

class Threads(MultiThreadedTestCase):
    world_size = 2
    store = dist.HashStore()

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_gather(self):
        outputs = [torch.zeros(1) for _ in range(2)]
        dist.all_gather(outputs, torch.tensor([float(self.rank)]))
        self.assertEqual(outputs, [torch.zeros(1), torch.ones(1)])

    def test_threads_share_their_module(self):
        assert type(self) is Threads
        SEEN.append(self.rank)
        if self.rank == 0:
            self.store.wait(["key"])
        else:
            self.store.set("key", "value")
        assert self.store.get("key") == b"value"
        dist.barrier()
        assert sorted(SEEN) == [0, 1]
        with self.assertRaisesRegex(dist.DistStoreError, "wait timeout after 2000ms"):
            self.store.wait(["another"], timedelta(seconds=2))

    def test_exit_of_a_thread(self):
        if self.rank == 1:
            raise SystemExit(7)

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
    for name in (
        "Processes::test_sum", "Threads::test_gather", "Continuous::test_pg",
        "Threads::test_threads_share_their_module", "Processes::test_skipped_by_the_last",
    ):  # fmt: skip
        assert f"PASSED test_suite.py::{name}\n" in out, out
    for name in (
        "Processes::test_wrong", "Processes::test_exit", "Processes::test_exit_of_the_last",
        "Threads::test_exit_of_a_thread",
    ):  # fmt: skip
        assert f"FAILED test_suite.py::{name} " in out, out
    assert "1 skipped" in out


def test_the_cluster_of_tests_may_be_named(monkeypatch):
    """As of a Context; else it is of as many HGX H100 nodes as there are ranks for."""
    names = {}

    def run(rank, kind):
        names[rank] = torch.cuda.get_device_name(rank)

    for settings in ({}, {"cluster": "hgx_a100"}):
        monkeypatch.setattr(testing, "_settings", settings)
        testing._run(object(), 2, run, are_threads=True)
        assert ("A100" if settings else "H100") in names[1]
