"""The clocks of the standard library inside ranks: simulated, and restored afterwards (E7)."""

# The programs here are users' programs: they read clocks, under every name.
# ruff: noqa: DTZ001, DTZ005, DTZ011, ICN001

import copy
import datetime
import datetime as dt
import importlib
import pickle
import time
import types
from time import perf_counter, sleep

import pytest

from simrank import Context
from simrank.errors import LivelockError
from simrank.isolation.clock import EPOCH_S

_ORIGINALS = (time.sleep, time.time, time.monotonic, datetime.datetime)
PS_PER_S = 10**12


def run(body, num_ranks=1):
    """Run `body(rank, ctx)` on ranks of a small cluster and return the Context."""
    with Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, (ctx,), nprocs=num_ranks)
    return ctx


def test_sleep_passes_simulated_time():
    """An hour of sleep moves the simulated clock by exactly an hour."""
    ctx = run(lambda _rank, _ctx: time.sleep(3600))

    assert ctx.now_ps == 3600 * PS_PER_S


def test_a_sleep_bound_earlier_passes_simulated_time():
    """`from time import sleep` in the program's own module is replaced too."""
    ctx = run(lambda _rank, _ctx: sleep(2.5))

    assert ctx.now_ps == 2_500_000_000_000


def test_clocks_agree_and_start_at_a_fixed_epoch():
    """Every clock shows the simulated time, so that two runs read the same."""
    seen = {}

    def body(_rank, _ctx):
        time.sleep(10)
        seen["time"] = time.time()
        seen["time_ns"] = time.time_ns()
        seen["bound"] = perf_counter()
        for name in ("perf_counter", "monotonic", "process_time", "thread_time"):
            seen[name] = getattr(time, name)()
            seen[f"{name}_ns"] = getattr(time, f"{name}_ns")()

    run(body)
    first, seen = seen, {}
    run(body)

    assert first == seen
    assert first["time"] == pytest.approx(EPOCH_S + 10, abs=1e-3)
    assert first["time_ns"] == pytest.approx((EPOCH_S + 10) * 10**9, abs=10**6)
    assert first["perf_counter"] == pytest.approx(10, abs=1e-3)
    assert first["monotonic_ns"] == pytest.approx(10 * 10**9, abs=10**6)


def test_reading_a_clock_is_charged_as_a_poll():
    """The first read costs 100 ns, and further ones twice the last while nothing else is done."""
    reads = []

    def body(_rank, _ctx):
        reads.extend(time.perf_counter_ns() for _ in range(4))

    run(body)

    assert reads == [100, 300, 700, 1500]


@pytest.mark.parametrize("module", [datetime, dt])
def test_datetime_now_is_simulated(module):
    """`now`, `utcnow` and `today` show the simulated date, in UTC."""
    seen = []

    def body(_rank, _ctx):
        time.sleep(86_400)
        seen.append(module.datetime.now())
        seen.append(module.datetime.utcnow())
        seen.append(module.datetime.today())
        seen.append(module.datetime.now(module.UTC).replace(tzinfo=None))

    run(body)

    assert {moment.date() for moment in seen} == {dt.date(2026, 1, 2)}
    assert all(type(moment) is _ORIGINALS[3] for moment in seen)


def test_datetimes_stay_datetimes_while_a_context_is_entered():
    """The stand-in makes plain datetimes, and takes older ones for its instances."""
    old = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    with Context("hgx_h100"):
        made = dt.datetime(2021, 2, 3, tzinfo=dt.UTC)
        parsed = dt.datetime.fromisoformat("2021-02-03T00:00:00+00:00")

        assert isinstance(old, dt.datetime)
        assert issubclass(_ORIGINALS[3], dt.datetime)
        assert made == parsed
        assert type(made) is type(parsed) is _ORIGINALS[3]


def test_classes_derived_within_a_context_have_instances_of_their_own():
    """Not all datetimes; and theirs are datetimes, of the class that they ask for."""
    with Context("hgx_h100"):

        class Moment(dt.datetime):
            def __new__(cls, *args):
                return super().__new__(cls, *args)

        class Later(Moment):
            pass

        made = Later(2021, 2, 3)
        assert type(made) is Later
        assert isinstance(made, (dt.date, _ORIGINALS[3]))
        assert isinstance(made, Moment)
        assert issubclass(Later, Moment)
        assert not isinstance(dt.datetime(2021, 2, 3, tzinfo=dt.UTC), Moment)
        assert not issubclass(_ORIGINALS[3], Moment)
        assert not isinstance(dt.date(2021, 2, 3), dt.datetime)


def test_modules_in_c_find_the_classes_that_they_derive_theirs_from():
    """The import system is what runs them; a class in Python would not do there."""
    called_by_import = importlib._bootstrap._call_with_frames_removed
    with Context("hgx_h100"):
        assert called_by_import(getattr, dt, "datetime") is _ORIGINALS[3]
        assert called_by_import(getattr, dt, "date") is _ORIGINALS[3].__mro__[1]
        assert dt.datetime is not _ORIGINALS[3]
    assert type(dt) is types.ModuleType
    assert dt.datetime is _ORIGINALS[3]


def test_clocks_on_the_hub_are_the_real_ones():
    """The main program inside a Context reads the machine's own clock."""
    with Context("hgx_h100") as ctx:
        before = time.time()
        now = dt.datetime.now(dt.UTC).timestamp()
        time.sleep(0)

        assert before > EPOCH_S - 10**8
        assert abs(now - before) < 1000
        assert ctx.now_ps == 0


def test_the_last_exit_restores_everything():
    """Names are replaced by the first Context that enters and restored by the last that exits."""
    with Context("hgx_h100"):
        assert time.sleep is not _ORIGINALS[0]
        assert sleep is time.sleep
        with Context("hgx_h100"):
            pass
        assert sleep is time.sleep is not _ORIGINALS[0]

    assert (time.sleep, time.time, time.monotonic, datetime.datetime) == _ORIGINALS
    assert sleep is _ORIGINALS[0]


def test_an_error_restores_everything():
    """A Context that is left by an exception restores the clocks too."""
    with pytest.raises(ZeroDivisionError), Context("hgx_h100"):
        raise ZeroDivisionError

    assert time.sleep is sleep is _ORIGINALS[0]


def test_spawn_on_a_context_that_was_not_entered_hides_the_clock():
    """Ranks never see the wall clock, however they were started."""
    ctx = Context("hgx_h100")
    ctx.multiprocessing.spawn(lambda _rank: time.sleep(5), nprocs=1)

    assert ctx.now_ps == 5 * PS_PER_S
    assert time.sleep is _ORIGINALS[0]


def test_a_bare_greenlet_sleeps_in_simulated_time():
    """A greenlet made by hand in a rank has no contextvars, and is simulated all the same."""
    from greenlet import greenlet

    woken = []

    def body(_rank, ctx):
        greenlet(lambda: (time.sleep(7), woken.append(ctx.now_ps))).switch()

    with Context("hgx_h100", carrier="greenlet") as ctx:
        ctx.multiprocessing.spawn(body, (ctx,), 1)
    assert woken == [7 * PS_PER_S]


def test_a_sleep_loop_ends_when_another_rank_sets_the_flag():
    """Sleeping towards a condition is no livelock while somebody can still change it."""
    flags = []

    def body(rank, ctx):
        if rank == 0:
            while not flags:
                time.sleep(1)
        else:
            ctx.wait(ctx.timer(30 * PS_PER_S - 1))
            flags.append(True)

    assert run(body, 2).now_ps == 30 * PS_PER_S


def test_a_sleep_loop_that_nobody_can_end_is_a_suspected_livelock():
    """The report names the rank, what it does and its line."""

    def body(_rank, _ctx):
        while True:
            time.sleep(1)

    with pytest.raises(LivelockError) as caught:
        run(body)

    assert not caught.value.proved
    (state,) = caught.value.waits
    assert (state.ranks, state.state) == ((0,), "time.sleep(1)")
    assert state.file.endswith("test_clock.py")


@pytest.mark.parametrize("step_s", [0, pytest.param(0.01, marks=pytest.mark.slow)])
def test_a_loop_towards_a_deadline_is_no_livelock(step_s):
    """A program that reads the clock may have a deadline of its own, here of ten minutes."""

    def body(_rank, _ctx):
        deadline = time.monotonic() + (600 if step_s else 5)
        while time.monotonic() < deadline:
            time.sleep(step_s)

    assert run(body).now_ps >= 5 * PS_PER_S


def test_sleeping_for_no_time_lets_time_pass():
    """`sleep(0)` in a loop is a poll, else simulated time would stand still for ever."""

    def body(_rank, ctx):
        timer = ctx.timer(10**7)
        while not timer.complete:
            time.sleep(0)

    assert 10**7 <= run(body).now_ps < 3 * 10**7


def test_a_negative_sleep_is_refused_as_outside():
    """The error is the standard library's."""
    with pytest.raises(Exception, match="sleep length must be non-negative"):
        run(lambda _rank, _ctx: time.sleep(-1))


def test_calendar_functions_show_simulated_time(run):
    """localtime, gmtime, ctime and strftime without a time; with one they are the originals."""
    import time as clock

    outside = clock.gmtime(0)

    def program(rank, ctx):
        clock.sleep(3600)
        for moment in (clock.gmtime(), clock.localtime()):
            assert (moment.tm_year, moment.tm_mon, moment.tm_mday, moment.tm_hour) == (
                2026,
                1,
                1,
                1,
            )
        assert clock.strftime("%Y-%m-%d %H:%M") == "2026-01-01 01:00"
        assert clock.ctime() == "Thu Jan  1 01:00:00 2026"
        assert clock.gmtime(0) == outside
        assert clock.strftime("%Y", outside) == "1970"

    run(program, 1)


def test_today_is_simulated_and_dates_stay_dates():
    """The day that simulated time has reached; objects made before and after are plain dates."""
    old, original = dt.date(2020, 1, 2), dt.date
    days = []

    def program(rank):
        days.append(datetime.date.today())
        time.sleep(3 * 86_400)
        days.append(dt.date.today())
        assert isinstance(old, dt.date)
        assert type(dt.date(2021, 2, 3)) is original
        assert isinstance(dt.datetime(2021, 2, 3, tzinfo=dt.UTC), dt.date)
        assert issubclass(dt.datetime, dt.date)
        assert dt.date.fromisoformat("2021-02-03") - dt.date(2021, 2, 1) == dt.timedelta(2)
        for value in (days[0], old, dt.datetime.now(dt.UTC), dt.datetime(2021, 2, 3)):
            for again in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value)):
                assert again == value
                assert type(again) is type(value)
        assert b"simrank" not in pickle.dumps([days[0], dt.datetime.now()])

    with Context("hgx_h100") as ctx:
        real = dt.date.today()
        ctx.multiprocessing.spawn(program, nprocs=1)
    assert days == [original(2026, 1, 1), original(2026, 1, 4)]
    assert dt.date is original
    assert abs(real - original.today()) <= dt.timedelta(1)
