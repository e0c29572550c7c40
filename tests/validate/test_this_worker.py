"""Pools with torch's process groups: made once, kept in step, left without asking anybody."""

from __future__ import annotations

import sys
import time
import types
import uuid

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from simrank.errors import (  # noqa: E402 - after torch is known to be there
    InactiveRanksError,
    PoolStartError,
    PortInUseError,
    RanksPartedError,
    RanksRaisedError,
    TooFewDevicesError,
    WorkerDiedError,
    WorkerTimeoutError,
)
from simrank.validate import Limits, Options, WorkerPool, team  # noqa: E402
from simrank.validate.this_worker import PoolGroups  # noqa: E402

from . import gloo_cases as cases  # noqa: E402
from .conftest import TOKEN, none_left  # noqa: E402


@pytest.fixture(scope="module")
def pool():
    """Four gloo workers for this module."""
    word = uuid.uuid4().hex
    with WorkerPool(4, timeout=60, env={TOKEN: word}, options=Options(retry=False)) as shared:
        yield shared
    assert none_left(word) == []


def test_process_groups_are_made_once(pool):
    """One request after the other on the same groups and processes, those of subsets included."""
    assert pool.run(cases.all_reduce) == [4.0] * 4
    pids = pool.pids
    assert pool.run(cases.is_the_group_of_before)[0] is False
    assert [pool.run(cases.all_reduce, value)[0] for value in (2.0, 3.0)] == [8.0, 12.0]
    assert pool.run(cases.is_the_group_of_before) == [True] * 4
    assert pool.run(cases.is_the_group_of_before, ranks=[1, 2]) == [False] * 2
    assert pool.run(cases.is_the_group_of_before, ranks=[1, 2]) == [True] * 2
    assert pool.pids == pids


def test_calls_on_what_is_gone_fail_or_go_on_as_torch_has_it(pool):
    """Watching them changes nothing."""
    reported = [
        "ValueError: Process group ",
        "ValueError: Process group ",
        "ValueError: Invalid destination rank: destination rank should not be the same as the rank "
        "of the current process.",
        2.0,
    ]
    assert pool.run(cases.use_what_is_gone) == [reported, reported, None, None]


def test_leaving_destroys_subgroups_first_and_a_failure_keeps_none(monkeypatch):
    """Each destroy has a guard of its own; here torch's two functions are recorded."""
    destroyed = []

    def destroy(group):
        destroyed.append(group)
        raise RuntimeError("broken")

    made = {"world": None, "pair": None, "other pair": None}
    c10d = types.SimpleNamespace(_world=types.SimpleNamespace(pg_map=made))
    dist = types.SimpleNamespace(destroy_process_group=destroy)
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", c10d)
    PoolGroups(None).leave()
    assert destroyed == ["other pair", "pair", "world"]


@pytest.mark.slow
def test_a_first_collective_that_is_wrong_is_no_start(tmp_path, monkeypatch):
    """It is tried before the first case, and its sum is looked at."""
    source = (
        "import torch.distributed.distributed_c10d as c10d\n"
        "c10d.all_reduce = lambda tensor, group=None: None\n"
    )
    (tmp_path / "wrong_sums.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    options = Options(preload=("wrong_sums",), retry=False)
    with WorkerPool(2, options=options) as two, pytest.raises(PoolStartError) as caught:
        two.start()
    assert "the first all_reduce of float32 gave 1.0, not 2" in str(caught.value)


@pytest.mark.slow
def test_a_port_is_bound_before_any_worker_starts(tmp_path, monkeypatch):
    """Nobody can take it in between: somebody listens there when a worker imports its first module.

    And the port that was published is the one where ranks meet, of each of two pools.
    """
    source = (
        "import os, socket\n"
        "socket.create_connection(('127.0.0.1', int(os.environ['MASTER_PORT'])), 5).close()\n"
    )
    (tmp_path / "knocks.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    options = Options(preload=("knocks",), retry=False)
    with WorkerPool(2, options=options) as two, WorkerPool(1, options=options) as one:
        (port, other), (third,) = (
            two.run(cases.variables, "MASTER_PORT"),
            one.run(cases.variables, "MASTER_PORT"),
        )
    assert port == other != third


def test_a_request_on_some_ranks_reduces_over_these(pool):
    """Mooncake's inactive ranks; later requests include them again."""
    assert pool.run(cases.among_active, ranks=[0, 3]) == [2.0, 2.0]
    assert pool.run(cases.among_active, ranks=[1, 2, 3]) == [3.0] * 3
    assert pool.run(cases.among_active, ranks=[0, 3]) == [2.0, 2.0]
    assert pool.run(cases.among_active) == [4.0] * 4
    assert pool.run(cases.all_reduce) == [4.0] * 4


def test_a_collective_that_needs_inactive_ranks_is_an_error_at_the_call(pool):
    """Not an endless wait."""
    pool.run(cases.all_reduce)
    pids = pool.pids
    with pytest.raises(RanksRaisedError) as caught:
        pool.run(cases.all_reduce, ranks=[0, 1])
    error = caught.value.errors[0]
    assert isinstance(error, InactiveRanksError)
    assert error.inactive == (2, 3)
    assert "active_group()" in str(error)
    assert pool.run(cases.all_reduce) == [4.0] * 4
    assert pool.pids == pids, "nobody was out of step"


def test_groups_that_a_case_left_are_dropped(pool):
    """The pool's own stay."""
    counts = [pool.run(cases.make_groups)[0] for _ in range(3)]
    assert len(set(counts)) == 1


def test_numbers_do_not_depend_on_the_case_before(pool):
    """Seeds, default dtype and grad mode."""
    first = pool.run(cases.defaults)
    pool.run(cases.numbers)
    assert pool.run(cases.defaults) == first
    assert first[0][:2] == ("torch.float32", True)


@pytest.mark.slow
def test_an_asymmetric_failure_is_reported_at_once_on_gloo(pool):
    """TransformerEngine's gap a, with a real collective."""
    pool.run(cases.all_reduce)
    started = time.monotonic()
    with pytest.raises(RanksRaisedError, match="before the collective") as caught:
        pool.run(cases.raise_before, 2)
    assert time.monotonic() - started < 10
    assert caught.value.facts[0].doing == "all_reduce #1 on group 'default_pg'"
    assert caught.value.facts[0].file.endswith("gloo_cases.py")


@pytest.mark.slow
def test_who_waits_for_whom_is_named_on_gloo(pool):
    """A rank that returned; ranks in other calls; a ring of receives."""
    with pytest.raises(RanksPartedError) as caught:
        pool.run(cases.skip, 1)
    assert caught.value.waits_for == {0: (1,), 2: (1,), 3: (1,)}
    assert caught.value.facts[0].doing == "all_reduce #2 on group 'default_pg'"
    with pytest.raises(RanksPartedError) as caught:
        pool.run(cases.part)
    assert caught.value.waits_for[1] == (0,)
    with pytest.raises(RanksPartedError) as caught:
        pool.run(cases.receive_in_a_ring, timeout=2)
    assert caught.value.waits_for == {0: (1,), 1: (2,), 2: (3,), 3: (0,)}
    assert caught.value.facts[0].doing == "irecv from rank 1"


@pytest.mark.slow
def test_a_wait_for_an_asynchronous_call_is_named_as_the_call(pool):
    """The slow rank is in none: that may be the machine's fault."""
    with pytest.raises(WorkerTimeoutError) as caught:
        pool.run(cases.stuck_async, timeout=2)
    assert caught.value.facts[1].doing == "all_reduce #1 on group 'default_pg'"
    assert caught.value.facts[0].doing == "running, in no collective"
    assert "ranks 1-3 wait for rank 0" in str(caught.value)
    assert "in stuck_async" in caught.value.stacks[0]


@pytest.mark.slow
def test_a_death_is_the_cause_of_what_its_peers_raise(pool):
    """Gloo's 'Connection closed by peer' is not the verdict."""
    with pytest.raises(WorkerDiedError) as caught:
        pool.run(cases.die_before, 1)
    assert caught.value.ended == {1: "killed by SIGKILL"}


@pytest.mark.slow
def test_workers_out_of_step_are_replaced_though_all_returned(pool):
    """A message that nobody received, or a group that is gone, would meet the next case."""
    pool.run(cases.all_reduce)
    for spoil in (cases.send_to_nobody, cases.destroy_world):
        pids = pool.pids
        pool.run(spoil)
        assert pool.run(cases.all_reduce) == [4.0] * 4
        assert not set(pids) & set(pool.pids)
    assert "ranks made different calls" in pool.events[-1]


@pytest.mark.slow
def test_an_occupied_port_is_an_error_that_names_its_holder():
    """Not a duplicate that some other job's ranks would meet at."""
    with team.bound() as listener:
        port = listener.getsockname()[1]
        with (
            WorkerPool(2, options=Options(port=port)) as two,
            pytest.raises(PortInUseError, match=f"port {port} is in use: held by"),
        ):
            two.start()
    with WorkerPool(2, options=Options(port=port)) as two:
        assert two.run(cases.variables, "MASTER_PORT") == [[str(port)]] * 2


@pytest.mark.slow
def test_too_few_gpus_are_one_line():
    """Tests skip with it."""
    needed = torch.cuda.device_count() + 1
    with WorkerPool(needed, "nccl") as pool, pytest.raises(TooFewDevicesError) as caught:
        pool.start()
    assert str(caught.value) == f"backend 'nccl' needs {needed} GPUs, but found {needed - 1}"


@pytest.mark.slow
@pytest.mark.parametrize("loading", ["LAZY", "EAGER"])
def test_the_first_collective_of_fresh_workers_is_tried_in_every_way_to_load_kernels(loading):
    """Mooncake's cycle: a first kernel that is loaded behind a spinning one."""
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs 2 GPUs, but found {torch.cuda.device_count()}")
    with WorkerPool(2, "nccl", env={"CUDA_MODULE_LOADING": loading}) as two:
        assert two.run(cases.among_active) == [2.0] * 2


@pytest.mark.slow
def test_a_start_that_hangs_says_how_far_each_rank_had_come(tmp_path, monkeypatch):
    """Here a second rank that never comes to the rendezvous."""
    source = "import os, time\nif os.environ['RANK'] == '1':\n    time.sleep(600)\n"
    (tmp_path / "late_on_one.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    limits = Limits(start_s=10)
    options = Options(limits=limits, retry=False, preload=("late_on_one",))
    with WorkerPool(2, options=options) as two, pytest.raises(PoolStartError) as caught:
        two.start()
    assert "workers were not ready after 10 s" in str(caught.value)
    assert caught.value.facts[0].doing == "rendezvous, in no collective"
    assert caught.value.facts[1].doing == "importing late_on_one, in no collective"
    assert "late_on_one.py" in caught.value.stacks[1]


@pytest.mark.slow
def test_a_start_that_fails_on_gloo_says_why():
    """Here a network interface that is not there."""
    options = Options(retry=False)
    with (
        WorkerPool(2, env={"GLOO_SOCKET_IFNAME": "nosuchdevice"}, options=options) as two,
        pytest.raises(PoolStartError, match="could not start") as caught,
    ):
        two.start()
    assert "nosuchdevice" in str(caught.value)
