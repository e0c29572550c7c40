"""The roots of the errors: their tree, and how ranks and their states are shown."""

import copy
import pickle
import sys
import types

import pytest

import simrank.errors
from simrank import errors
from simrank.engine import TimeLimitError, user_site
from simrank.engine.watchdog import StoppedByWatchdog
from simrank.errors import (
    BodyError,
    CallVariant,
    ChannelError,
    CollectiveMismatchError,
    ConfigError,
    ConfigProblem,
    DeadlockError,
    DistBackendError,
    DistNetworkError,
    FlightRecordError,
    FoldingError,
    HubError,
    IllegalTransportError,
    InactiveRanksError,
    InfrastructureError,
    LivelockError,
    OutOfMemoryError,
    PeerDiedError,
    PoolError,
    PoolStartError,
    PortInUseError,
    ProcessException,
    ProcessExitedException,
    ProcessRaisedException,
    RaceAccess,
    RaceError,
    RankAborted,
    RankInactiveError,
    RanksPartedError,
    RanksRaisedError,
    RankState,
    RequestError,
    ResultError,
    ScheduleError,
    SpawnException,
    TimeOverflowError,
    TooFewDevicesError,
    UninitializedValueError,
    UnknownValueError,
    WaitTimeoutError,
    WorkerDiedError,
    WorkerFacts,
    WorkerTimeoutError,
    ranks_text,
    states_text,
)
from simrank.errors.base import cell_text, made_again, place_text, remade

FILE = "/home/me/train.py"


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([0], "0"),
        ([2, 0, 1], "0-2"),
        ([0, 1, 2, 5], "0-2, 5"),
        ([1, 1, 3], "1, 3"),
        (range(0, 40, 2), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, ... (20 ranks)"),
    ],
)
def test_ranks_are_shown_as_ranges(ranks, text):
    """At most twelve of them."""
    assert ranks_text(ranks) == text


def test_states_that_are_too_many_are_counted():
    """The last line says how many more there are."""
    lines = states_text([RankState((rank,), f"recv from rank {rank + 1}") for rank in range(50)])

    assert len(lines) == errors.MAX_REPORT_LINES - 2
    assert lines[-1] == "  and 37 more sets of ranks"


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (RankState((-1,), "a handle"), "a greenlet: a handle"),
        (RankState((), "work stalled"), "in flight: work stalled"),
    ],
)
def test_what_is_no_rank_is_named_otherwise(state, text):
    """A bare greenlet, or work that nobody waits for."""
    assert str(state) == text


def test_the_text_of_a_wrong_file_has_limited_length():
    """All problems stay in the error."""
    problems = [ConfigProblem("a.yaml", line, "", "each key once", "two") for line in range(60)]
    error = ConfigError(*problems)
    assert error.problems == tuple(problems)
    *_, last_shown, rest = str(error).splitlines()
    assert last_shown == "a.yaml:49: expected each key once, got two"
    assert rest == "and 10 more problems"
    assert "more" not in str(ConfigError(*problems[:50]))


def test_the_tree_of_errors_is_the_one_in_the_docstring():
    """Every exception class is named there."""
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, BaseException)
    ]

    assert classes
    assert [kind.__name__ for kind in classes if kind.__name__ not in errors.__doc__] == []
    assert all(issubclass(kind, errors.SimrankError | errors.RankAborted) for kind in classes)


def test_rank_states_can_be_pickled():
    """Facts travel between processes."""
    state = RankState((0, 1), "a handle", FILE, 3)

    assert pickle.loads(pickle.dumps(state)) == state


# ---- lines of programs in reports: files by name, cells of notebooks by number ----


def test_a_file_is_told_by_its_name():
    """As ever."""
    assert place_text("/home/user/train.py", 41) == "train.py:41"
    assert cell_text("/home/user/train.py") is None
    assert cell_text("<string>") is None


def test_a_cell_of_terminal_ipython_is_told_by_its_number():
    """Which is part of the name of its file."""
    assert place_text("<ipython-input-3-0a1b2c3d4e5f>", 4) == "In [3], line 4"


def test_a_cell_of_a_kernel_is_told_by_the_number_that_ipython_gave_it(monkeypatch):
    """Its file has another one; without IPython's table the number is not known."""
    file = "/tmp/ipykernel_12/3456.py"
    assert place_text(file, 4) == "In [?], line 4"
    compiler = types.SimpleNamespace(_filename_map={file: 7})
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: types.SimpleNamespace(compile=compiler)
    monkeypatch.setitem(sys.modules, "IPython", module)
    assert place_text(file, 4) == "In [7], line 4"
    assert (
        str(RankState((0, 1), "barrier #1", file, 4)) == "ranks 0-1: barrier #1 at In [7], line 4"
    )


@pytest.mark.parametrize("file", ["<ipython-input-3-0a1b>", "/tmp/ipykernel_12/3456.py"])
def test_a_cell_is_part_of_the_program(file):
    """The site of a call in it is its own."""
    names = {"user_site": user_site}
    exec(compile("\n\nsite = user_site()", file, "exec"), names)  # noqa: S102 - a cell
    assert names["site"].line() == (file, 3)


# ---- errors go to other processes, and are copied, with all they carry ----

STATES = (RankState((0, 1), "all_reduce #7", "train.py", 3), RankState((2,), "returned"))
ACCESS = RaceAccess("add_", "writes", "default", "train.py", 3)
FACTS = [WorkerFacts(0, "raised ValueError: x", traceback="Traceback ...", pid=7)]
ERRORS = [
    ConfigError(ConfigProblem("a.yaml", 3, "links[0]", "450 GB/s", "450")),
    ScheduleError("ring.xml: deadlock", "gpu 0", "gpu 1"),
    FlightRecordError("rank_3: not read"),
    FoldingError("rank 3 does not run"),
    HubError(),
    TimeOverflowError(5, 1 << 62),
    UninitializedValueError("the tensor", "train.py:3"),
    UnknownValueError(".item()", "a tensor", "train.py:3", ("sum", "train.py:2")),
    OutOfMemoryError(3, (100, 10, 50), [(40, "train.py:3")]),
    DeadlockError(5, STATES, to_fix="wait", seed=4),
    LivelockError(5, STATES),
    DistBackendError(5, 0, (RankState((0,), "all_reduce #1"), RankState((1,), "all_reduce #1"))),
    TimeLimitError(5, 2.0, STATES, seed=1),
    WaitTimeoutError(5, 1, "a message", 7),
    CollectiveMismatchError(
        5, "tp0", 7, [CallVariant((rank,), {"op": "all_reduce", "count": str(rank)}, "a.py", 3)
                      for rank in (0, 1)], (2,)
    ),
    RaceError(5, 0, ACCESS, ACCESS, "train.py:1"),
    DistNetworkError(5, 29_500),
    IllegalTransportError("rendezvous", 64, "host", "nccl", "train.py:3"),
    RankInactiveError(5, "broadcast", 3, 2),
    PeerDiedError(5, "all_reduce #7", 3, ValueError("x")),
    ProcessException("text", 1, 10),
    ProcessRaisedException("text", 1, 10),
    ProcessExitedException("text", 1, 10, 7, "SIGTERM"),
    SpawnException("text", 1, 10, errors={1: ValueError("x"), 2: KeyError("y")}),
    PoolError("the pool is closed"),
    RanksRaisedError("case 1", FACTS, errors={0: ValueError("x")}, case=1, end=["killed"]),
    RanksPartedError("case 1", FACTS, waits_for={0: [1]}),
    ChannelError("no frame", FACTS),
    PortInUseError(29_500, "python (pid 7)"),
    TooFewDevicesError("nccl", 4, 0),
    RequestError("f cannot be pickled"),
    ResultError("case 1: rank 0 returned an object", case=1, end=["to fix: return plain data"]),
    InfrastructureError("case 1", FACTS),
    WorkerDiedError("case 1", FACTS),
    WorkerTimeoutError("case 1", FACTS),
    PoolStartError("case 1", FACTS),
    InactiveRanksError("barrier", [1]),
    BodyError("ValueError", "bad", "test_x.py:3", "E   ValueError: bad", pickled=b"x"),
    RankAborted(3),
    StoppedByWatchdog(),
]  # fmt: skip


def facts(value):
    """Return the comparable parts of an error."""
    if isinstance(value, BaseException):
        return type(value), value.args, str(value), facts(vars(value))
    if isinstance(value, dict):
        return {key: facts(held) for key, held in value.items()}
    return value


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "travel",
    [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deepcopy"],
)
def test_every_error_travels_with_its_attributes_and_notes(error, travel):
    """`multiprocessing.Pool` waits for ever for an error that does not unpickle."""
    error.add_note("simrank: raised by rank 1")

    assert facts(travel(error)) == facts(error)


def test_no_class_of_errors_is_left_out():
    """A class that is added later has to be in the table above."""
    classes = {
        held for held in vars(simrank.errors).values()
        if isinstance(held, type) and issubclass(held, BaseException)
    }  # fmt: skip
    abstract = {"SimrankError", "SimulationError", "UnsupportedError", "NoRankError"}

    assert {held.__name__ for held in classes} - abstract <= {type(e).__name__ for e in ERRORS}


class LostError(Exception):
    """A program's own exception that pickles, and does not unpickle."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class MuteError(Exception):
    """A program's own exception without a text."""

    def __reduce__(self):
        """Refuse."""
        raise TypeError("never")

    def __str__(self):
        """Fail."""
        raise ValueError("no text")


def test_what_a_program_s_own_exceptions_cannot_do_does_not_keep_the_report_from_travelling():
    """They come as what can be told of them; the original is not touched."""
    error = SpawnException(
        "text", 1, 10, errors={1: LostError(1, 2), 2: MuteError(), 3: KeyError("y")}
    )

    there = pickle.loads(pickle.dumps(error))

    texts = {rank: str(held) for rank, held in there.errors.items()}
    assert texts == {
        1: "LostError: 1 and 2",
        2: "MuteError: <its text failed with ValueError>",
        3: "'y'",
    }
    assert type(error.errors[1]) is LostError
    assert type(copy.copy(error).errors[1]) is LostError


def test_an_attribute_that_cannot_travel_comes_as_its_text():
    """Rather than keep the whole error from travelling."""
    error = RaceError(5, 0, ACCESS, ACCESS, None)
    error.first = lambda: None

    assert "<lambda>" in pickle.loads(pickle.dumps(error)).first


class TwoPartsError(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")
        self.first = first


def test_an_exception_is_made_again_though_its_constructor_takes_something_else():
    """With text and attributes; values that cannot be pickled are replaced by their text."""
    error = TwoPartsError(1, 2)
    error.held = open  # A builtin travels by name,
    error.stuck = (value for value in ())  # a generator does not.
    again = made_again(remade(error))
    assert (type(again), str(again), again.first, again.held) == (TwoPartsError, "1 and 2", 1, open)
    assert again.stuck.startswith("<generator")


def test_an_exception_of_a_class_without_an_importable_name_is_not_made_again():
    """The caller tells it by its text."""

    class LocalError(Exception):
        pass

    assert remade(LocalError()) is None
