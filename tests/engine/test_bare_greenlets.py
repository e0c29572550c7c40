"""Bare greenlets that wait, chains of them, and tasks that drive greenlets by hand."""

import pytest
from greenlet import getcurrent, greenlet
from hypothesis import example, given
from hypothesis import strategies as st

from simrank.engine import Engine, Handle, Task, TaskGroup
from simrank.errors import DeadlockError, UnsupportedError


def run(engine, *bodies):
    """Run bodies as ranks of one group and return the group."""
    tasks = []
    for rank, body in enumerate(bodies):
        task = Task(engine, f"rank {rank}", rank)
        task.carry(body)
        tasks.append(task)
    group = TaskGroup(engine, "the program", tasks)
    group.start()
    engine.run(group)
    return group


@pytest.fixture(name="engine")
def fixture_engine():
    """Return a new engine."""
    return Engine()


def test_a_chain_of_greenlets_goes_on_from_the_innermost_out(engine):
    """Each link gets control back from its own switch, with the value its greenlet returned."""
    log = []

    def innermost():
        log.append("in")
        engine.sleep(100)
        log.append(("woken", engine.now_ps))

    def middle():
        greenlet(innermost).switch()
        log.append("middle")
        return "value"

    def outer():
        log.append(greenlet(middle).switch())
        engine.sleep(10)
        log.append(("outer", engine.now_ps))

    group = run(engine, outer)

    assert log == ["in", "middle", "value", ("outer", 10), ("woken", 100)]
    assert not group.failed
    assert not engine.tasks


def test_a_chain_made_on_the_hub_goes_on_too(engine):
    """Control returns to the main program; the link between is queued at this time."""
    log = []

    def innermost():
        engine.sleep(100)
        log.append("in")

    def middle():
        greenlet(innermost).switch()
        log.append("middle")

    greenlet(middle).switch()
    log.append("hub")
    engine.run()

    assert log == ["hub", "middle", "in"]


def test_every_link_of_a_chain_may_wait(engine):
    """Three links sleep beside one another, not one after the other."""
    ends = {}

    def link(depth):
        if depth:
            greenlet(lambda: link(depth - 1)).switch()
        engine.sleep(100)
        ends[depth] = engine.now_ps

    run(engine, lambda: link(3))

    assert ends == dict.fromkeys(range(4), 100)


def test_a_waiting_greenlet_that_is_switched_into_goes_on_waiting(engine):
    """Neither the wait nor the sleep ends early, and who drove gets control back each time."""
    log = []

    def bare():
        engine.sleep(100)
        log.append(("slept", engine.now_ps))
        engine.wait(engine.timer(100))
        log.append(("waited", engine.now_ps))

    def driver():
        made = greenlet(bare)
        made.switch()
        for _ in range(3):
            made.switch()
        log.append(("drove", engine.now_ps))
        engine.sleep(150)
        made.switch()
        log.append(("drove", engine.now_ps))

    run(engine, driver)

    assert log == [("drove", 0), ("slept", 100), ("drove", 150), ("waited", 200)]


def test_a_task_may_switch_into_another_task_by_hand(engine):
    """The other one goes on waiting, and the first is not lost."""
    log = []
    tasks = []

    def waiting():
        tasks.append(engine.current_task())
        engine.sleep(100)
        log.append(("waited", engine.now_ps))

    def driving():
        tasks[0].greenlet.switch()
        log.append(("drove", engine.now_ps))

    group = run(engine, waiting, driving)

    assert log == [("drove", 0), ("waited", 100)]
    assert not group.failed


def test_a_greenlet_that_ends_while_it_is_driven_returns_control(engine):
    """Its parent is the hub, yet its driver goes on, and no false deadlock is seen."""
    log = []

    def bare():
        engine.sleep(10)
        engine.hub.switch()  # Hands control out by hand: somebody has to drive it on.
        log.append("ends")

    def driver():
        made = greenlet(bare)
        made.switch()
        engine.sleep(50)
        made.switch()
        log.append(("driver", made.dead))

    run(engine, driver)

    assert log == ["ends", ("driver", True)]
    assert not engine.tasks


def test_a_greenlet_that_ends_while_the_hub_drives_it_is_forgotten(engine):
    """Nothing is left unfinished after it."""

    def bare():
        engine.sleep(10)
        engine.hub.switch()

    made = greenlet(bare)
    made.switch()
    engine.step()
    made.switch()

    assert made.dead
    engine.run()
    assert not engine.tasks


def test_a_greenlet_that_fails_fails_its_rank(engine):
    """The exception that a driven greenlet raises is a root cause of the rank's group."""
    aborted = []

    def bare():
        engine.sleep(10)
        raise ValueError("in the greenlet")

    def driver():
        greenlet(bare).switch()
        try:
            engine.wait(Handle())
        except SystemExit:
            aborted.append(engine.now_ps)
            raise

    group = run(engine, driver)

    assert [(type(task.error), task.rank) for task in group.failed] == [(ValueError, 0)]
    assert aborted == [10]


def test_a_greenlet_of_nobody_that_fails_raises_in_the_hub(engine):
    """As a task without a group does."""

    def bare():
        engine.sleep(10)
        raise ValueError("alone")

    greenlet(bare).switch()

    with pytest.raises(ValueError, match="alone"):
        engine.run()
    assert not engine.tasks


def test_greenlets_of_an_aborted_rank_end_with_it(engine):
    """They get the abort where they wait, and leave nothing behind."""
    ended = []

    def bare():
        try:
            engine.wait(Handle())
        finally:
            ended.append(engine.now_ps)

    def driver():
        greenlet(bare).switch()
        engine.sleep(20)
        raise ValueError

    run(engine, driver)

    assert ended == [20]
    assert not engine.tasks


def test_a_group_ends_when_its_greenlets_have(engine):
    """As a process ends after its threads."""
    group = run(engine, lambda: greenlet(lambda: engine.sleep(500)).switch())

    assert group.complete_ps == 500


def test_a_greenlet_that_nobody_wakes_is_reported_under_its_rank(engine):
    """The deadlock report knows which rank drove it."""
    with pytest.raises(DeadlockError) as caught:
        run(engine, lambda: greenlet(lambda: engine.wait(Handle())).switch())

    assert caught.value.waits[0].ranks == (0,)


def test_a_task_may_not_wait_on_another_engine(engine):
    """Nobody would drive that one: an error by name instead of a hang."""
    other = Engine()
    group = run(engine, lambda: other.wait(other.timer(5)))

    assert type(group.failed[0].error) is UnsupportedError
    assert not other.tasks


class Player:
    """Runs programs that are lists of (verb, number)."""

    def __init__(self, engine):
        self.engine = engine
        self.handles = [engine.timer(7 * number) for number in range(5)] + [Handle()]
        self.made = []
        self.ended = []

    def play(self, program, name):
        """Do each verb; time never runs backwards."""
        for verb, number in program:
            before_ps = self.engine.now_ps
            getattr(self, verb)(number, program)
            assert self.engine.now_ps >= before_ps
        self.ended.append(name)

    def sleep(self, number, _program):
        """Sleep, exactly that long."""
        end_ps = self.engine.now_ps + 10 * number
        self.engine.sleep(10 * number)
        assert self.engine.now_ps == end_ps

    def wait(self, number, _program):
        """Wait for a timer, or for what never completes."""
        self.engine.wait(self.handles[number])
        assert self.handles[number].complete

    def limit(self, number, _program):
        """Wait with a limit."""
        assert not self.engine.wait_at_most(self.handles[5], number)

    def drive(self, number, _program):
        """Switch by hand into a greenlet, whatever it does."""
        if self.made:
            self.made[number % len(self.made)].switch()

    def make(self, number, program):
        """Make a greenlet that plays a part of this program."""
        if len(self.made) < 20:
            self.made.append(greenlet(lambda: self.play(program[:number], "made")))
            self.made[-1].switch()

    def fail(self, number, _program):
        """Fail sometimes."""
        if number == 0:
            raise ValueError("root cause")


@given(
    programs=st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["sleep", "wait", "limit", "drive", "make", "fail"]),
                st.integers(0, 5),
            ),
            max_size=6,
        ),
        min_size=1,
        max_size=5,
    ),
    seed=st.integers(0, 3),
)
@example([[("sleep", 5), ("fail", 0)], [("sleep", 5), ("make", 1), ("make", 1)]], 0)
def test_no_program_is_ever_lost(programs, seed):
    """Whatever greenlets do to one another, each ends, fails, or is named in a report."""
    engine = Engine(seed=seed)
    player = Player(engine)
    try:
        group = run(engine, *[lambda p=p, n=n: player.play(p, n) for n, p in enumerate(programs)])
    except DeadlockError as error:
        assert any(state.waits for state in error.waits)  # noqa: PT017 - either end is right
        return
    assert all(task.finished for task in group.tasks)
    assert all(type(task.error) is ValueError for task in group.failed)
    if not group.failed:
        assert sorted(n for n in player.ended if n != "made") == list(range(len(programs)))
    assert not engine.tasks


def test_a_task_that_goes_to_the_hub_by_hand_yields(engine):
    """It is queued again at the same time."""
    log = []

    def yielding():
        log.append("a")
        getcurrent().parent.switch()
        log.append("c")

    run(engine, yielding, lambda: log.append("b"))

    assert log == ["a", "b", "c"]
