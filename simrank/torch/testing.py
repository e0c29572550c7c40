"""PyTorch's own test classes on simulated ranks: one line in a `conftest.py`.

    import simrank.torch.testing; simrank.torch.testing.simulate()

From then on every test of `MultiProcessTestCase`, `MultiThreadedTestCase` and
`MultiProcContinuousTest` runs on as many simulated ranks as it asks for, each in a run of its own.
Ranks of process tests have their own copies of the test module; those of thread tests share it.
"""

from __future__ import annotations

import sys
import types
import unittest
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from simrank.context import Context
from simrank.distributed.membership import world_of
from simrank.errors import ProcessExitedException, SpawnException
from simrank.isolation import private_modules
from simrank.isolation.private_modules import own_copy
from simrank.ranks import require_rank
from simrank.torch.devices.main_program import show_devices

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

_HARNESS = ("builtins", "unittest", "torch.testing._internal.common_")
_settings: dict[str, Any] = {}


def simulate(**settings: Any) -> None:
    """Run PyTorch's multi-process test classes on simulated ranks.

    Args:
        **settings: Of the Context that each test runs in; see `simrank.Context`. Without a cluster
            it has as many HGX H100 nodes as a test has ranks for.
    """
    read_rewritten_tests()
    show_devices(settings.get("cuda_devices"))
    _settings.clear()
    _settings.update(settings)
    common: Any = import_module("torch.testing._internal.common_distributed")
    processes, threads = common.MultiProcessTestCase, common.MultiThreadedTestCase
    continuous = common.MultiProcContinuousTest
    processes._start_processes = processes._spawn_processes = _nothing
    processes._join_processes = _join_processes
    processes.run_test = _run_test
    threads._spawn_threads = _nothing
    threads.join_or_run = _join_or_run
    continuous._ensure_processes_spawned = classmethod(_prepare)
    continuous._worker_run_main_wait = _join_or_run_continuous


def read_rewritten_tests() -> None:
    """Give each rank's copy of a test file the code that pytest has rewritten."""
    rewrite: Any = sys.modules.get("_pytest.assertion.rewrite")
    rewritten = getattr(rewrite, "_rewrite_test", None)
    if rewritten is not None:

        def read(loader: Any, _: str, file: str) -> CodeType:
            code: CodeType = rewritten(Path(file), loader.config)[1]
            return code

        private_modules.register_reader(rewrite.AssertionRewritingHook, read)


def _nothing(self: object, proc: object = None) -> None:
    """Start nothing: the ranks start as the test is joined."""


def _run(
    test: Any, num_ranks: int, run: Callable[..., None], *args: object, are_threads: bool = False
) -> None:
    """Run a test on ranks.

    Processes have their own copies of its class and of the modules that it is made from; threads
    share them, as in torch, so that they see what the main program and other threads have set.
    """
    kind = type(test)
    modules = {base.__module__ for base in kind.__mro__ if not base.__module__.startswith(_HARNESS)}
    private = [*_settings.get("private", ()), *sorted(modules - {"__main__"})]
    if are_threads:
        private = [name for name in private if name not in modules]
    settings = {**_settings, "private": private}
    made = Context if "cluster" in settings else partial(Context.for_ranks, num_ranks)
    with made(**settings) as context:
        shared = (kind, run, args, are_threads)
        context.multiprocessing.spawn(_run_rank, shared, num_ranks, share_args=True)


def _run_rank(
    rank: int, kind: type, run: Callable[..., None], args: tuple[Any, ...], are_threads: bool
) -> None:
    own = kind if are_threads else own_copy(kind)
    device_types: Any = import_module("torch.testing._internal.common_device_type")
    kept = device_types.DeviceTypeTestBase._tls  # It was filled for the main thread alone.
    kept.precision = kept.rel_tol = device_types.TestCase._precision
    if are_threads:
        run(rank, own, *args)
        return
    # What class methods set is the rank's own, too.
    run(rank, type(own.__name__, (own,), {"__module__": own.__module__}), *args)


# ---- MultiProcessTestCase ----


def _join_processes(self: Any, fn: Callable[..., Any]) -> None:
    """Run the test on ranks, and check their exit codes as PyTorch does."""
    num_ranks = int(self.world_size)
    codes: list[int | str | None] = [0] * num_ranks
    name = self._current_test_name()
    fake_pg = getattr(self, "fake_pg", False)
    is_unchecked = fn in self.skip_return_code_checks
    try:
        _run(self, num_ranks, _run_process, name, self.file_name, fake_pg, codes)
    except (SpawnException, ProcessExitedException):
        if is_unchecked:
            return
        raise
    if is_unchecked:
        return
    _judge(self, codes, self.special_return_code_checks.get(fn, 0))


def _run_process(
    rank: int, kind: Any, name: str, file_name: str, fake_pg: bool, codes: list[Any]
) -> None:
    try:
        kind._run(rank, name, file_name, None, fake_pg=fake_pg)
    except SystemExit as error:
        if not isinstance(error.code, int | None):
            raise
        codes[rank] = error.code or 0


def _run_test(self: Any, test_name: str, parent_pipe: object) -> None:
    """Run one test on one rank, and raise its exception."""
    common: Any = import_module("torch.testing._internal.common_distributed")
    utils: Any = import_module("torch.testing._internal.common_utils")
    utils.set_rng_seed()
    try:
        getattr(self, test_name)()
    except unittest.SkipTest:
        raise SystemExit(common.TEST_SKIPS["generic"].exit_code) from None
    if self.destroy_pg_upon_exit and dist.is_initialized():
        dist.destroy_process_group()


def _judge(test: Any, codes: list[Any], expected: int = 0) -> None:
    """Check the exit codes of all ranks; PyTorch checks rank 0 alone.

    Args:
        test: The test.
        codes: By rank.
        expected: The exit code of rank 0, which the rest may have or exit with 0.

    Raises:
        unittest.SkipTest: Rank 0 has skipped the test.
    """
    common: Any = import_module("torch.testing._internal.common_distributed")
    messages = {skip.exit_code: skip.message for skip in common.TEST_SKIPS.values()}
    for rank, code in enumerate(codes):
        if rank and code not in messages and code not in (0, expected):
            test.fail(f"Expected exit code {expected} of rank {rank} but got {code}")
    if codes[0] in messages:
        raise unittest.SkipTest(messages[codes[0]])
    test.assertEqual(codes[0], expected, f"Expected exit code {expected} but got {codes[0]}")


# ---- MultiThreadedTestCase ----


def _join_or_run(self: Any, fn: Callable[..., Any]) -> Any:
    """Return the test method: on the hub it runs the ranks, on a rank the test."""

    @wraps(fn)
    def method(self: Any) -> None:
        if self.rank != self.MAIN_THREAD_RANK:
            fn()
            return
        codes: list[Any] = [0] * self.world_size
        name = self._current_test_name
        _run(self, self.world_size, _run_thread, name, codes, are_threads=True)
        _judge(self, codes)

    return types.MethodType(method, self)


def _run_thread(rank: int, kind: Any, name: str, codes: list[Any]) -> None:
    test = kind(name)
    test.rank = rank
    world_of(require_rank("a test")).shares_devices = True
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=rank, world_size=test.world_size)
    test.perThreadSetUp()
    try:
        getattr(test, name)()
    except unittest.SkipTest:
        common: Any = import_module("torch.testing._internal.common_distributed")
        codes[rank] = common.TEST_SKIPS["generic"].exit_code
    except SystemExit as error:
        codes[rank] = error.code or 0
    if dist.is_initialized():
        dist.destroy_process_group()
    test.perThreadTearDown()


# ---- MultiProcContinuousTest ----


def _prepare(cls: Any) -> None:
    """Find the number of ranks of the class, without a start."""
    if cls.world_size == -2:  # PyTorch's mark of a class that takes what there is.
        cls.world_size = 2
    cls.task_queues = cls.completion_queues = cls.processes = ()


def _join_or_run_continuous(self: Any, fn: Callable[..., Any]) -> Any:
    """Return the test method: on the hub it runs the ranks, on a rank the test."""

    @wraps(fn)
    def method(self: Any) -> None:
        if self.rank != self.MAIN_PROCESS_RANK:
            fn()
            return
        codes: list[Any] = [0] * self.world_size
        _run(self, self.world_size, _run_continuous, self.id(), self.world_size, codes)
        _judge(self, codes)

    return types.MethodType(method, self)


def _run_continuous(rank: int, kind: Any, test_id: str, world_size: int, codes: list[Any]) -> None:
    kind.rank, kind.world_size = rank, world_size
    try:
        kind._init_pg(rank, world_size, f"rendezvous of {test_id}")
        kind._run_test_given_id(test_id)
    except SystemExit as error:
        codes[rank] = error.code or 0
    except unittest.SkipTest:
        common: Any = import_module("torch.testing._internal.common_distributed")
        codes[rank] = common.TEST_SKIPS["generic"].exit_code
    if dist.is_initialized():
        dist.destroy_process_group()
