"""What each rank gets of spawn's arguments: what a pickle round trip makes, or the thing itself."""

import collections
import dataclasses
import enum
import functools
import io
import math
import pickle
import queue
import random
import threading
from typing import NamedTuple

import numpy as np
import pytest

import simrank
import simrank.multiprocessing as mp
from simrank.errors import SpawnException
from simrank.multiprocessing.arguments import per_rank


class Color(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    tags: list


@dataclasses.dataclass
class Config:
    lr: float
    layers: list = dataclasses.field(default_factory=list)
    parent: object = None


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Stateful:
    def __init__(self):
        self.kept, self.scratch = [1], object()

    def __getstate__(self):  # noqa: D105
        return {"kept": self.kept}


class WithoutPickle:
    def __reduce__(self):  # noqa: D105
        raise TypeError("no")


def plain(value):
    return value


def recursive():
    found = Config(0.5)
    found.parent = [found]
    return found


def copies(*args, nprocs=2, shared=False):
    """Return what each of `nprocs` ranks gets."""
    call = per_rank(plain, args, shared=shared)
    return [call()[1] for _ in range(nprocs)]


COPYABLE = {
    "list": [1, [2, "x"]],
    "dict": {"a": [1], (1, 2): {3}},
    "tuple with a list": (1, [2]),
    "bytearray": bytearray(b"abc"),
    "ordered dict": collections.OrderedDict(a=[1]),
    "default dict": collections.defaultdict(list, a=[1]),
    "deque": collections.deque([1, [2]], maxlen=5),
    "dataclass": Config(0.1, [1, 2]),
    "named tuple": Point(1, ["x"]),
    "slots": Slotted([1]),
    "partial": functools.partial(plain, [1]),
    "exception": ValueError("text", [1]),
    "array": np.arange(6.0).reshape(2, 3),
    "object array": np.array([None, [1], "x"], dtype=object),
    "stream": io.BytesIO(b"abc"),
}


@pytest.mark.parametrize("name", COPYABLE)
def test_a_copy_is_what_a_pickle_round_trip_makes(name):
    """Same type and same parts, a new object on every rank, not the caller's."""
    value = COPYABLE[name]
    expected = pickle.dumps(pickle.loads(pickle.dumps(value, 4)), 4)
    (first,), (second,) = copies(value)
    assert type(first) is type(value)
    assert pickle.dumps(first, 4) == pickle.dumps(second, 4) == expected
    assert first is not value
    assert first is not second


def test_aliases_within_the_arguments_of_one_rank_stay_aliases():
    """The same list twice is one list, also inside an object, and a cycle stays one."""
    shared_list = [1]
    first, second, config, loop = copies(shared_list, shared_list, Config(1, shared_list), [])[0]
    assert first is second is config.layers
    assert first is not shared_list
    (copy,) = copies(recursive())[0]
    assert copy.parent[0] is copy
    loop.append(loop)
    (copy,) = copies(loop)[0]
    assert copy[0] is copy


def test_getstate_decides_what_is_copied():
    """As with pickle, what it leaves out is missing."""
    (copy,) = copies(Stateful())[0]
    assert copy.kept == [1]
    assert not hasattr(copy, "scratch")


def test_random_generators_are_copied_with_their_state():
    """Every rank draws the same numbers, and the caller's generator does not move."""
    ours, python = np.random.default_rng(5), random.Random(5)
    first, second = copies(ours, python)
    expected = np.random.default_rng(5).random(3).tolist()
    assert first[0].random(3).tolist() == second[0].random(3).tolist() == expected
    assert first[1].random() == second[1].random() == random.Random(5).random()
    assert ours.random(3).tolist() == expected


SHARED = {
    "thread lock": threading.Lock,
    "thread event": threading.Event,
    "thread queue": queue.Queue,
    "thread barrier": lambda: threading.Barrier(2),
    "queue": mp.Queue,
    "simple queue": mp.SimpleQueue,
    "lock": mp.Lock,
    "value": lambda: mp.Value("i", 3),
    "array": lambda: mp.Array("i", 3),
    "managed dict": lambda: mp.Manager().dict(a=1),
    "managed list": lambda: mp.Manager().list([1]),
    "managed namespace": lambda: mp.Manager().Namespace(a=1),
    "manager": mp.Manager,
}


@pytest.mark.parametrize("name", SHARED)
def test_locks_queues_and_managed_containers_are_shared(name):
    """Alone and inside a list, which itself is copied."""
    value = SHARED[name]()
    outer = [value]
    (first, inside), (second, _) = copies(value, outer)
    assert first is second is value
    assert inside is not outer
    assert inside[0] is value


def test_simranks_own_things_are_shared(ctx):
    """Context, tensors of device and host, streams, events, handles, dtypes."""
    things = [
        ctx,
        ctx.ones(3),
        ctx.ones(3, device="cpu"),
        ctx.Stream(),
        ctx.Event(),
        ctx.timer(5),
        ctx.float32,
        ctx.cluster,
    ]
    (got,) = copies(things)[0]
    assert got is not things
    assert all(ours is theirs for ours, theirs in zip(got, things, strict=True))


def test_functions_classes_and_modules_stay_themselves():
    """Local ones too, and members of an Enum."""

    class Local:
        pass

    things = [plain, lambda: 1, Local, math, Color.RED, len, np.add, functools.partial]
    (got,) = copies(things)[0]
    assert all(ours is theirs for ours, theirs in zip(got, things, strict=True))


def test_an_instance_of_a_local_class_is_copied():
    """Pickle itself could not: the class goes by reference."""

    @dataclasses.dataclass
    class Local:
        values: list

    value = Local([1])
    (copy,) = copies(value)[0]
    assert copy == value
    assert copy is not value
    assert copy.values is not value.values


def test_what_cannot_be_pickled_is_shared(tmp_path):
    """Generators, open files, objects that refuse: the containers around them are copied."""
    generator, refuses = (i for i in range(3)), WithoutPickle()
    with (tmp_path / "file").open("w") as file:
        outer = {"file": file, "list": [generator, refuses, [1]]}
        (copy,) = copies(outer)[0]
        assert copy["file"] is file
    assert copy["list"][:2] == [generator, refuses]
    assert copy["list"] is not outer["list"]
    assert copy["list"][2] is not outer["list"][2]


def test_an_object_that_holds_an_open_file_is_shared_whole(tmp_path):
    """A copy around it would close the file when it dies; lambdas inside do not matter."""
    with (tmp_path / "file").open("w") as file:
        log = Config(0.1, [file])
        calls = Config(0.1, [lambda: 1])
        got_log, got_calls = copies(log, calls)[0]
        assert got_log is log
    assert got_calls is not calls
    assert got_calls.layers[0] is calls.layers[0]


def test_what_is_nested_too_deep_for_pickle_is_shared():
    """Pickle raises a RecursionError."""
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert copies(deep)[0][0] is deep


def test_immutable_arguments_are_not_copied():
    """Numbers, text and tuples of them: nobody could tell the difference, so it costs nothing."""
    args = (1, "x", (2.5, (None, b"y")), plain, range(3))
    assert per_rank(plain, args, shared=False)() == (plain, args)
    assert copies(*args)[0][2] is args[2]


def test_ranks_do_not_see_each_others_changes(ctx):
    """Neither does the caller, and what the caller does after spawn is not seen by the ranks."""
    numbers, seen = [0], []

    def program(rank, given, config):
        seen.append((rank, list(given), config["lr"]))
        given.append(rank)
        config["lr"] = rank

    config = {"lr": 0.1}
    started = ctx.multiprocessing.spawn(program, (numbers, config), nprocs=3, join=False)
    numbers.append(7)
    while not started.join():
        pass
    assert seen == [(rank, [0], 0.1) for rank in range(3)]
    assert (numbers, config) == ([0, 7], {"lr": 0.1})


@pytest.mark.parametrize("name", ["spawn", "start_processes"])
def test_share_args_hands_every_rank_the_very_objects(name):
    """As threads would."""
    results = {}
    start = getattr(mp, name)
    start(lambda rank, out: out.update({rank: rank}), (results,), nprocs=3, share_args=True)
    assert results == {0: 0, 1: 1, 2: 2}


class Trainer:
    def __init__(self):
        self.ranks = []

    def train(self, rank, seen):
        self.ranks.append(rank)
        seen.append(self.ranks)


def test_the_object_of_a_bound_method_is_an_argument_like_any_other(ctx):
    """A real spawn pickles it too."""
    trainer, seen = Trainer(), mp.Manager().list()
    ctx.multiprocessing.spawn(trainer.train, (seen,), nprocs=3)
    assert seen == [[0], [1], [2]]
    assert trainer.ranks == []


def test_a_copy_that_cannot_be_made_fails_on_the_rank_and_says_so(ctx):
    """As in a child process whose unpickling fails."""

    class OddError(Exception):
        def __init__(self, a, b):
            super().__init__("text")

    with pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(plain, (OddError(1, 2),), nprocs=2)
    error = caught.value.errors[0]
    assert isinstance(error, TypeError)
    assert "simrank: raised while spawn copied its arguments for this rank" in error.__notes__


def raises_as_pickle(value):
    """Return the type and text of what pickle raises."""
    try:
        pickle.dumps(value, 4)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return type(error), str(error)
    return None


@pytest.mark.parametrize(
    "value", [lambda rank: 1, [lambda: 1], (i for i in ()), WithoutPickle(), math]
)
def test_strict_raises_what_pickle_raises_before_any_rank_starts(value):
    """For a function or an argument that a real spawn could not pickle."""
    with simrank.Context("hgx_h100", strict=True) as ctx:
        given = (value, ()) if callable(value) else (print, (1, value))
        with pytest.raises(Exception, match=r"pickle|no") as caught:
            ctx.multiprocessing.spawn(*given, nprocs=2)
        assert ctx.engine.tasks == {}
    assert (type(caught.value), str(caught.value)) == raises_as_pickle(value)
    what = "its function" if callable(value) else "argument 2 after the rank"
    assert f"a real spawn pickles {what}" in caught.value.__notes__[0]


def test_strict_lets_pass_what_real_processes_can_be_sent():
    """Functions of a module, copies, queues and locks of multiprocessing, tensors."""
    with simrank.Context("hgx_h100", strict=True) as ctx:
        args = [[1], mp.Queue(), mp.Event(), mp.Manager().list(), ctx, ctx.ones(3), Config(0.1)]
        ctx.multiprocessing.spawn(ignore, args, nprocs=2)
        with pytest.raises(TypeError, match="cannot pickle"):
            ctx.multiprocessing.spawn(ignore, (queue.Queue(),), nprocs=2)
        ctx.multiprocessing.spawn(ignore, (queue.Queue(),), nprocs=2, share_args=True)


def ignore(*_):
    pass


def test_arguments_are_pickled_once_however_many_ranks_there_are():
    """Only unpickling is per rank."""
    calls = []

    class Counted:
        def __getstate__(self):
            calls.append(1)
            return {"a": 1}

    copied = copies(Counted(), nprocs=100)
    assert len({id(copy) for (copy,) in copied}) == 100
    assert calls == [1]
