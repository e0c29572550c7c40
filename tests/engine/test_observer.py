"""Observers: they cost nothing when there are none, and change nothing when there are."""

from simrank import Context
from simrank.engine.task import SwitchObserver


class Everything:
    """Keeps whatever it sees."""

    def __init__(self):
        self.seen = []

    def on_task_switch(self, task, time_ps):
        """Keep a switch."""
        self.seen.append((task.name, time_ps))

    def on_host(self, task, name, start_ps, end_ps):
        """Keep a span of a host."""
        self.seen.append((task.name, name, start_ps, end_ps))

    def on_operation(self, operation):
        """Keep an operation."""
        self.seen.append((operation.name, operation.start_ps, operation.complete_ps))

    def on_transfer(self, size_bytes, links, start_ps, end_ps):
        """Keep a transfer."""
        self.seen.append((size_bytes, links, start_ps, end_ps))


def run(*observers):
    """Run a small program and return its time and result."""
    results = []
    with Context("hgx_h100") as ctx:
        for observer in observers:
            ctx.observe(observer)

        def body(rank):
            x = ctx.ones(100) * rank
            results.append((x + 1).numpy().sum())

        ctx.multiprocessing.spawn(body, nprocs=2)
    return ctx.now_ps, results


def test_an_observed_run_is_the_same_run():
    """Times and numbers do not depend on who looks."""
    assert run() == run(Everything()) == run(Everything(), Everything())


def test_two_observed_runs_show_the_same():
    """The same seed gives the same sequence of everything."""
    first, second = Everything(), Everything()
    run(first)
    run(second)

    assert first.seen == second.seen
    assert first.seen


def test_an_observer_of_switches_alone_needs_no_more_than_that():
    """The rest it sees is nothing to it."""
    names = []

    class Switches(SwitchObserver):
        """Keeps who was resumed."""

        def on_task_switch(self, task, time_ps):
            names.append(task.name)

    assert run(SwitchObserver()) == run(Switches())
    assert {"rank 0", "rank 1"} <= set(names)
