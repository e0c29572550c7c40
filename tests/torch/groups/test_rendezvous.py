"""Default groups that change: they grow, shrink, are numbered anew, and have new processes."""

import multiprocessing
import os
import time

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from simrank.errors import SpawnException, UnsupportedError

SPAWNING = multiprocessing.get_context("spawn")


def joined(prefix, store, rank, size, backend="gloo"):
    """Join a group, and return what its members tell each other."""
    store = dist.PrefixStore(prefix, store)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    x = torch.tensor([10.0**rank], device="cuda" if backend == "nccl" else "cpu")
    dist.all_reduce(x)
    named = [None] * size
    dist.all_gather_object(named, dist.get_rank())
    ends = dist.new_group([0, size - 1])
    if rank in (0, size - 1):
        y = torch.tensor([rank + 1.0], device=x.device)
        dist.broadcast(y, src=size - 1, group=ends)
        named.append(y.item())
    dist.destroy_process_group()
    return x.item(), named


@pytest.mark.parametrize("deferred_error", [0, 3])
def test_a_group_grows_and_shrinks_and_is_numbered_anew(spawn, deferred_error):
    """Ranks that are not in it do something else; also where some that wait for it come first."""
    seen = {}

    def program(me):
        store = dist.TCPStore("127.0.0.1", 29500, 4, is_master=me == 0)
        if me == deferred_error:
            store.set("deferred_error", "")
        store.wait(["deferred_error"])
        for prefix, members in [
            ("a", [0, 1]),
            ("b", [0, 1, 2, 3]),
            ("c", [3, 0, 2]),
            ("d", [1, 3]),
        ]:
            if me in members:
                rank = members.index(me)
                seen[prefix, rank] = joined(prefix, store, rank, len(members))

    spawn(program, 4)
    for prefix, size in (("a", 2), ("b", 4), ("c", 3), ("d", 2)):
        for rank in range(size):
            expected = [*range(size), *([float(size)] if rank in (0, size - 1) else [])]
            assert seen.pop((prefix, rank)) == (int("1" * size), expected)
    assert seen == {}


def test_who_changes_its_number_alone_is_told(spawn):
    """Others have joined as they were started by then, as nothing had changed."""

    def program(me):
        store = dist.TCPStore("127.0.0.1", 29500, 3, is_master=me == 0)
        rank = [1, 0, 2][me]
        if me == 2:
            dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
            store.set("early", "")
            return
        store.wait(["early"])
        with pytest.raises(UnsupportedError, match=r"rank\(s\) 2 of it joined as they were start"):
            dist.init_process_group("gloo", store=store, rank=rank, world_size=3)

    spawn(program, 3)


def replace(port, results, backend):
    """Be a process in the place of rank 1."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    results.put((joined("second", store, 1, 3, backend), os.environ["RANK"]))


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_new_process_takes_the_place_of_a_dead_rank(spawn, backend):
    """All have their numbers again; who waited for the dead one had an error."""
    results = SPAWNING.SimpleQueue()
    seen = {}

    def program(me):
        store = dist.TCPStore("127.0.0.1", 29500, 3, is_master=me == 0)
        if backend == "nccl":
            torch.cuda.set_device(me)
        first = dist.PrefixStore("first", store)
        dist.init_process_group(backend, store=first, rank=me, world_size=3)
        if me == 1:
            raise ValueError("lost")
        x = torch.ones(1, device="cuda" if backend == "nccl" else "cpu")
        with pytest.raises(RuntimeError, match=r"rank 1 died .*lost"):
            dist.all_reduce(x)
            x.item()
        dist.destroy_process_group()
        if me == 0:
            child = SPAWNING.Process(target=replace, args=(29500, results, backend))
            child.start()
        seen[me] = joined("second", store, me, 3, backend)
        if me == 0:
            seen[1], variable = results.get()
            child.join()
            assert (variable, child.exitcode) == ("0", 0)

    with pytest.raises(SpawnException) as failure:
        spawn(program, 3, on_failure="continue")
    assert list(failure.value.errors) == [1], failure.value.errors
    assert seen == {0: (111.0, [0, 1, 2, 3.0]), 1: (111.0, [0, 1, 2]), 2: (111.0, [0, 1, 2, 3.0])}


def summed(rank, size):
    """Be a worker of a pool that is a world of its own."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29777")
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    torch.set_default_dtype(torch.float64 if rank else torch.float32)
    dist.init_process_group("gloo")
    x = torch.ones(1, dtype=torch.float32) * (rank + 1)
    dist.all_reduce(x)
    dist.destroy_process_group()
    return x.item(), torch.get_default_dtype()


def test_workers_of_a_pool_are_a_world_of_their_own(spawn):
    """As tests of libraries make them; each has its own default type."""

    def program(me):
        with SPAWNING.Pool(2) as pool:
            found = pool.starmap_async(summed, [(0, 2), (1, 2)], chunksize=1).get(60)
        assert found == [(3.0, torch.float32), (3.0, torch.float64)]
        assert torch.get_default_dtype() == torch.float32
        assert os.environ.get("MASTER_PORT") != "29777"

    spawn(program, 1)


def member(rank, size, attempt, port, results):
    """Be a process of a world; one of the first dies."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    while True:
        store_of = dist.PrefixStore(f"attempt {attempt}", store)
        dist.init_process_group("gloo", store=store_of, rank=rank, world_size=size)
        dist.barrier()
        if (rank, attempt) == (1, 0):
            os._exit(3)
        try:
            x = torch.tensor([2.0**rank])
            dist.all_reduce(x)
            results.put((rank, attempt, x.item()))
            return
        except RuntimeError as error:
            results.put("rank 1 died" in str(error))
            dist.destroy_process_group()
            attempt += 1


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_of_one_rank_are_a_world_and_one_is_started_again(spawn, method):
    """With ranks of their own; more of them than the node has devices, too."""
    found = []

    def program(me):
        context, size = multiprocessing.get_context(method), 9
        results = context.SimpleQueue()
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

        def started(rank, attempt):
            child = context.Process(target=member, args=(rank, size, attempt, store.port, results))
            child.start()
            return child

        children = [started(rank, 0) for rank in range(size)]
        children[1].join()
        assert children[1].exitcode == 3
        children[1] = started(1, 1)
        assert [results.get() for _ in range(size - 1)] == [True] * (size - 1)
        found.extend(results.get() for _ in children)
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0] * size
        assert not dist.is_initialized()

    spawn(program, 1)
    assert sorted(found) == [(rank, 1, 511.0) for rank in range(9)]


def of_spawn(index, first, size, port, results):
    """Be a rank of one of several spawns that make one group."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    rank = first + index
    found = joined("a", store, rank, size)
    by_hand = dist.ProcessGroupGloo(dist.PrefixStore("b", store), size - 1 - rank, size)
    x = torch.tensor([float(rank)])
    by_hand.broadcast([x]).wait()
    results.put((rank, found[0], x.item(), joined("c", store, size - 1 - rank, size)[0]))


def test_ranks_of_several_spawns_make_a_group(spawn):
    """As the workers of several agents do."""
    results = SPAWNING.SimpleQueue()

    def program(me):
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        started = [
            mp.spawn(of_spawn, (first, 5, store.port, results), nprocs=n, join=False)
            for first, n in ((0, 2), (2, 3))
        ]
        for each in started:
            while not each.join():
                pass
        found = sorted(results.get() for _ in range(5))
        assert found == [(rank, 11111.0, 4.0, 11111.0) for rank in range(5)]

    spawn(program, 1)


def of_lasting_spawn(index, first, port, results):
    """Be a rank of one of two spawns; wait for all until those of the other are gone."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=first + index, world_size=4)
    dist.barrier()
    store.add("there", 1)
    try:
        dist.barrier()
        time.sleep(1000)
    except RuntimeError as error:
        results.put((first + index, "cannot complete: rank" in str(error)))


@pytest.mark.parametrize("ended", [0, 1])
def test_ranks_of_a_spawn_that_is_ended_are_lost_to_those_of_another(spawn, ended):
    """Whichever of the two has begun; others go on."""

    def program(me):
        results = SPAWNING.SimpleQueue()
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        spawns = [
            mp.spawn(of_lasting_spawn, (first, store.port, results), nprocs=2, join=False)
            for first in (0, 2)
        ]
        store.wait(["there"])
        spawns[ended].processes[0].terminate()
        reported = sorted(results.get() for _ in range(2))
        assert reported == [(rank, True) for rank in ((2, 3), (0, 1))[ended]]
        with pytest.raises(mp.ProcessExitedException, match="signal SIGTERM"):
            spawns[ended].join()
        assert spawns[1 - ended].join()

    spawn(program, 1)


def trained(folder):
    """Be a worker of torch's elastic launcher that fails at first."""
    count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo")
    x = torch.tensor([10.0 ** dist.get_rank()])
    dist.all_reduce(x)
    if (dist.get_rank(), count) == (1, 0):
        raise ValueError("at first")
    dist.barrier()
    dist.destroy_process_group()
    return count, x.item()


def test_the_elastic_launcher_starts_its_workers_again(spawn, monkeypatch):
    """As many times as it may; its agent knows the error of a rank, which is torch's as well."""
    from torch.distributed.launcher import LaunchConfig, elastic_launch

    # As torch 2.13 does otherwise, workers that start again find what the first have left.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")

    def program(rank):
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d", run_id="1",
            rdzv_endpoint="localhost:0", max_restarts=1, monitor_interval=1,
        )  # fmt: skip
        assert elastic_launch(config, trained)("x") == {0: (1, 11.0), 1: (1, 11.0)}

    spawn(program, 1)


def failing(rank, code):
    """Fail as a number says."""
    if rank == 1:
        if code is None:
            raise ValueError("one")
        raise SystemExit(code)


def test_what_spawn_raises_in_a_rank_is_torchs_own_error_too(spawn):
    """With its attributes."""

    def program(rank):
        with pytest.raises(mp.ProcessRaisedException, match="ValueError: one") as raised:
            mp.spawn(failing, (None,), nprocs=2)
        assert (raised.value.error_index, list(raised.value.errors)) == (1, [1])
        assert isinstance(raised.value.__cause__, ValueError)
        with pytest.raises(mp.ProcessExitedException) as exited:
            mp.spawn(failing, (7,), nprocs=2)
        assert (exited.value.error_index, exited.value.exit_code) == (1, 7)

    spawn(program, 1)


def test_a_forked_process_knows_the_groups_of_its_rank(spawn):
    """As a fork, it has the very objects: they need no pickle."""
    found = []

    def program(me):
        dist.init_process_group("gloo")
        part = dist.new_group([me])
        context = multiprocessing.get_context("fork")
        results = context.SimpleQueue()

        def report():
            results.put((dist.get_rank(), dist.get_world_size(), dist.get_world_size(part)))

        child = context.Process(target=report)
        child.start()
        found.append(results.get())
        child.join()

    spawn(program, 2)
    assert sorted(found) == [(0, 2, 1), (1, 2, 1)]
