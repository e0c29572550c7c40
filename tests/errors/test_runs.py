"""What goes wrong inside a run, as it is told: the text of each class is frozen here."""

import json
import logging
import time
from datetime import timedelta

import pytest

import simrank
import simrank.distributed as dist
from simrank import Context, errors
from simrank.errors import (
    CallVariant,
    CollectiveMismatchError,
    DeadlockError,
    DivergencePoint,
    LivelockError,
    PeerDiedError,
    ProcessExitedException,
    RankState,
    Side,
    SpawnException,
    TimeOverflowError,
    UninitializedValueError,
    WaitTimeoutError,
)

FILE = "/home/me/train.py"


def test_deadlock_says_who_waits_for_what_and_where():
    """Ranks as ranges, one line per set, the ended last, a hint if there is one."""
    error = DeadlockError(
        12_500_000,
        [
            RankState((0, 1, 2), "all_reduce #7 on group 'tp0'", FILE, 41),
            RankState((3,), "recv from rank 0 on group 'world'", FILE, 44),
            RankState((4, 6), "returned", waits=False),
        ],
        to_fix="make every rank of a group issue the same collectives in order",
        seed=3,
    )

    assert str(error) == (
        "deadlock (proved) at t=12.500 us: 4 rank(s) wait forever\n"
        "  ranks 0-2: all_reduce #7 on group 'tp0' at train.py:41\n"
        "  rank 3: recv from rank 0 on group 'world' at train.py:44\n"
        "  ranks 4, 6: returned\n"
        "  to fix: make every rank of a group issue the same collectives in order"
    )
    assert error.proved
    assert (error.time_ps, error.seed, len(error.waits)) == (12_500_000, 3, 3)
    assert json.loads(json.dumps(error.to_json())) == {
        "kind": "DeadlockError",
        "time_ps": 12_500_000,
        "text": str(error),
        "proved": True,
        "seed": 3,
        "waits": [
            {
                "ranks": [0, 1, 2],
                "state": "all_reduce #7 on group 'tp0'",
                "file": FILE,
                "line": 41,
                "waits": True,
            },
            {
                "ranks": [3],
                "state": "recv from rank 0 on group 'world'",
                "file": FILE,
                "line": 44,
                "waits": True,
            },
            {"ranks": [4, 6], "state": "returned", "file": None, "line": None, "waits": False},
        ],
        "diverged_at": None,
        "to_fix": "make every rank of a group issue the same collectives in order",
    }


def test_deadlock_of_the_main_program_names_what_it_waits_for():
    """Without a rank that waits, that is the news."""
    error = DeadlockError(0, [RankState((0,), "returned", waits=False)], hub_waits_for="a handle")

    assert str(error) == (
        "deadlock (proved) at t=0.000 us: nothing can complete a handle\n  rank 0: returned"
    )
    assert error.hub_waits_for == "a handle"


def test_a_report_with_the_line_where_ranks_parted_is_as_short():
    """It comes before what is to be fixed, in both kinds of hang; ranks in many states are cut."""
    sides = (Side((0,), "took it"), Side((1,), "did not"))
    diverged_at = DivergencePoint(FILE, 40, "if loss > 3:", sides)
    states = [RankState((rank,), f"recv from rank {rank + 1}", FILE, 44) for rank in range(40)]
    deadlock = DeadlockError(0, states, to_fix="think", diverged_at=diverged_at)
    livelock = LivelockError(0, states, diverged_at=diverged_at)

    reported = "  diverged at train.py:40 `if loss > 3:`: rank 0 took it; rank 1 did not"
    assert str(deadlock).splitlines()[-2:] == [reported, "  to fix: think"]
    assert str(livelock).splitlines()[-1] == reported
    for error in (deadlock, livelock):
        assert len(str(error).splitlines()) <= errors.MAX_REPORT_LINES
        assert error.to_json()["diverged_at"]["line"] == 40


def test_livelock_says_what_is_polled_and_that_it_is_suspected():
    """A program may yet stop by itself."""
    error = LivelockError(
        10**9, [RankState((0, 1), "is_completed of all_reduce #7", FILE, 9)], seed=5
    )

    assert str(error) == (
        "livelock (suspected) at t=1000.000 us: ranks poll, nothing changes\n"
        "  ranks 0-1: is_completed of all_reduce #7 at train.py:9"
    )
    facts = json.loads(json.dumps(error.to_json()))
    assert (facts["kind"], facts["proved"], facts["seed"]) == ("LivelockError", False, 5)
    assert facts["waits"][0]["line"] == 9


@pytest.mark.parametrize(("rank", "who"), [(3, "rank 3"), (None, "the main program")])
def test_wait_timeout_says_who_waited_how_long_for_what(rank, who):
    """It is a TimeoutError too."""
    error = WaitTimeoutError(2_000_000, rank, "all_reduce #7", 1_500_000)

    assert str(error) == (
        f"{who} waited 1.500 us for all_reduce #7: the time limit passed at t=2.000 us"
    )
    assert isinstance(error, TimeoutError)
    assert (error.rank, error.what, error.timeout_ps) == (rank, "all_reduce #7", 1_500_000)


def test_mismatch_shows_only_the_columns_that_differ():
    """No rank is presumed right; ranks without the call and a hint at different lines are named."""
    columns = {"op": "all_reduce", "reduce_op": "sum", "dtype": "float32", "count": "8"}
    error = CollectiveMismatchError(
        0,
        "tp0",
        7,
        [
            CallVariant((0, 1), columns, FILE, 41),
            CallVariant((3,), {**columns, "dtype": "float16", "count": "9"}, FILE, 44),
        ],
        [2],
    )

    assert str(error) == (
        "mismatch (proved) at t=0.000 us: the ranks of group 'tp0' differ in dtype and count "
        "at call #7\n"
        "  ranks 0-1: all_reduce dtype=float32 count=8 at train.py:41\n"
        "  rank 3: all_reduce dtype=float16 count=9 at train.py:44\n"
        "  rank 2: not there yet\n"
        "  to fix: the calls are of different lines: make every rank reach the same one; or, if "
        "they belong together, cast the tensors to one dtype on every rank"
    )
    assert (error.group, error.seq, error.differing) == ("tp0", 7, ("dtype", "count"))
    facts = json.loads(json.dumps(error.to_json()))
    assert facts["variants"][1]["columns"]["dtype"] == "float16"
    assert facts["not_called"] == [2]


def test_mismatch_of_the_operation_itself_names_both():
    """A column that only one of them has is shown as missing on the other."""
    error = CollectiveMismatchError(
        0,
        "world",
        1,
        [
            CallVariant((0,), {"op": "all_reduce", "reduce_op": "sum"}, None, None),
            CallVariant((1,), {"op": "broadcast", "root": "0"}, None, None),
        ],
        [],
    )

    assert str(error).splitlines()[1:] == [
        "  rank 0: op=all_reduce reduce_op=sum root=-",
        "  rank 1: op=broadcast reduce_op=- root=0",
        "  to fix: make every rank of the group issue the same collectives in the same order",
    ]


def spawn_error(body, num_ranks, kind):
    """Run ranks into an error and return it."""
    nodes = -(-num_ranks // 8)
    ctx = Context({"name": "h100_ib", "nodes": nodes})
    with pytest.raises(kind) as caught, ctx:
        ctx.multiprocessing.spawn(body, (ctx,), nprocs=num_ranks)
    return caught.value


def lost_call(rank, ctx):
    """Rank 3 forgets the second all_reduce."""
    dist.init_process_group()
    x = ctx.ones(1)
    dist.all_reduce(x)
    if rank != 3:
        dist.all_reduce(x)
        x.numpy()


@pytest.mark.parametrize("num_ranks", [8, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_deadlock_of_many_ranks_is_short_and_exact(num_ranks):
    """One line for those that wait, one for the culprit, whatever the number of ranks."""
    error = spawn_error(lost_call, num_ranks, DeadlockError)

    assert len(str(error).splitlines()) <= errors.MAX_REPORT_LINES
    waits, ended = error.waits
    assert waits.ranks == tuple(rank for rank in range(num_ranks) if rank != 3)
    assert waits.state.startswith("all_reduce #2 on group")
    assert waits.file == __file__
    assert (ended.ranks, ended.state) == ((3,), "returned")


# ---- the place of a divergence in reports ----


def test_a_parting_names_the_line_and_what_each_side_saw():
    """On one line, ranks as ranges."""
    sides = (Side((0,), "took it", (("loss", "3.5"),)), Side((1, 2, 3), "did not"))
    diverged_at = DivergencePoint("/home/me/train.py", 41, "if loss > 3:", sides)
    assert str(diverged_at) == (
        "diverged at train.py:41 `if loss > 3:`: rank 0 took it (loss = 3.5); ranks 1-3 did not"
    )


def test_a_line_whose_source_is_not_known_is_its_number():
    """A file that is gone."""
    diverged_at = DivergencePoint(
        "train.py", 41, "", (Side((0,), "returned"), Side((1,), "waits there"))
    )
    assert str(diverged_at) == "diverged at train.py:41: rank 0 returned; rank 1 waits there"


# ---- A report tells the root cause ----


def test_the_time_of_a_failure_is_that_of_the_rank_s_own_clock(run):
    """Launches have moved it ahead of the engine's."""

    def program(rank, ctx):
        x = ctx.ones(4)
        for _ in range(100):
            x.add_(1)
        raise ValueError("after a hundred launches")

    with pytest.raises(SpawnException, match=r"raised by rank 0 at t=[1-9]\d\d\.000 us"):
        run(program, 1)


class MuteError(Exception):
    """Has no text."""

    def __str__(self):
        """Fail."""
        raise RuntimeError("no text")


class ProudError(Exception):
    """Takes no notes."""

    def add_note(self, note):
        """Refuse."""
        raise RuntimeError("no notes")


class FrozenError(Exception):
    """Takes no attributes."""

    def __setattr__(self, name, value):
        """Refuse."""
        raise RuntimeError("no attributes")


@pytest.mark.parametrize("on_failure", ["abort", "continue"])
@pytest.mark.parametrize("kind", [MuteError, ProudError, FrozenError])
def test_an_exception_that_misbehaves_is_still_the_root_cause(run, kind, on_failure):
    """Its text, its notes, its attributes: none of them replaces it."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank == 1:
            raise kind("the cause")
        dist.barrier()

    with pytest.raises(SpawnException, match=kind.__name__) as caught:
        run(program, 3, on_failure=on_failure)
    assert {rank: type(error) for rank, error in caught.value.errors.items()} == {1: kind}


def test_what_survivors_could_not_read_is_a_consequence(run):
    """The root cause is the rank that died."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4)
        if rank == 1:
            raise KeyError("the cause")
        try:
            dist.all_reduce(x)
            x.tolist()
        except PeerDiedError:
            x.tolist()

    with pytest.raises(SpawnException, match="the cause") as caught:
        run(program, 3, on_failure="continue")
    assert list(caught.value.errors) == [1]
    assert {type(error) for error in caught.value.consequences.values()} <= {
        UninitializedValueError,
        PeerDiedError,
    }


def test_a_kill_tells_time_call_and_line(run):
    """Of what the rank was doing."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4)
        for _ in range(100):
            dist.all_reduce(x)
            x.tolist()

    with pytest.raises(ProcessExitedException) as caught:
        run(program, 2, faults=[{"kill": 1, "at": "100 us"}])
    text = str(caught.value)
    assert text.startswith("process 1 terminated with signal SIGKILL\n")
    assert "killed by an injected fault at t=10" in text
    assert ", in all_reduce #" in text
    assert "test_runs.py:" in text


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_done_callback_that_raises_is_logged_as_torch_does(run, caplog, backend):
    """The rank goes on."""
    ended = []

    def program(rank, ctx):
        dist.init_process_group(backend)
        x = ctx.ones(4, device="cpu" if backend == "gloo" else "cuda")
        work = dist.all_reduce(x, async_op=True)
        work.get_future().add_done_callback(lambda _future: 1 / 0)
        work.wait()
        ended.append(x.tolist())

    with caplog.at_level(logging.ERROR, logger="simrank"):
        run(program, 2)
    assert ended == [[2.0] * 4] * 2
    assert "rank 1: got an error when running a future's callback" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_times_beyond_the_end_of_simulated_time_are_refused(run):
    """Not an overflow somewhere inside; time limits of any length are none."""

    def sleeps(rank):
        time.sleep(1e7)

    def waits_long(rank, ctx):
        dist.init_process_group("gloo")
        x = ctx.ones(4, device="cpu")
        dist.all_reduce(x, async_op=True).wait(timedelta.max)

    with simrank.Context() as ctx, pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(sleeps, nprocs=1)
    assert isinstance(caught.value.errors[0], TimeOverflowError)
    run(waits_long, 2)
