"""Hooks of exceptions: each rank's own, and the main program's as they were."""

import decimal
import inspect
import io
import linecache
import logging
import os
import pdb
import subprocess
import sys
import threading
import time
import trace
import types
import warnings
from pathlib import Path

import coverage
import pytest

import simrank
import simrank.distributed as dist
import simrank.multiprocessing as mp
from simrank.errors import DeadlockError, SpawnException
from simrank.isolation import diagnostics
from simrank.multiprocessing.tracebacks import show_reports_first


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
@pytest.mark.parametrize("module", [sys, threading])
def test_a_hook_that_a_rank_sets_is_its_own(carrier, module):
    """Each finds the main program's before its own, never another rank's."""
    show_reports_first()  # As the first spawn of a process does.
    before, found = module.excepthook, []

    def program(rank, ctx):
        own = module.excepthook
        found.append(own)

        def hook(*args):
            return own(*args)

        module.excepthook = hook
        ctx.engine.sleep(1)
        assert module.excepthook is hook

    with simrank.Context("hgx_h100", carrier=carrier) as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=3)
        assert module.excepthook is before
    assert module.excepthook is before
    assert found == [before] * 3


@pytest.mark.parametrize("module", [sys, threading])
def test_a_hook_that_the_main_program_sets_meanwhile_stays(module, monkeypatch):
    """As streams do."""
    monkeypatch.setattr(module, "excepthook", module.excepthook)

    def hook(*_):
        """Do nothing."""

    with simrank.Context("hgx_h100"):
        module.excepthook = hook
        assert module.excepthook is hook
    assert module.excepthook is hook


def test_threads_of_a_rank_tell_its_own_hook():
    """And nobody else's."""
    reported = []

    def program(rank):
        threading.excepthook = lambda args: reported.append((rank, args.thread.name, args.exc_type))
        thread = threading.Thread(target=lambda: 1 // 0, name=f"of {rank}")
        thread.start()
        thread.join()

    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2)
    assert reported == [(rank, f"of {rank}", ZeroDivisionError) for rank in range(2)]


# ---- debuggers, coverage and notebooks: what works in a process works in a rank ----

US = 10**6


def until(function, text):
    """Return pdb's commands that go on to a line: Pythons differ in where set_trace stops."""
    lines, first = inspect.getsourcelines(function)
    number = first + next(
        index for index, line in enumerate(lines) if line.strip().startswith(text)
    )
    return f"tbreak {number}\nc\n"


def stopping(rank, ctx, commands, out):
    ctx.engine.sleep(12_345_000 if rank == 3 else 1000)
    number = rank * 10
    if rank == 3:
        stdin = io.StringIO(until(stopping, "number += 1") + commands)
        debugger = pdb.Pdb(stdin=stdin, stdout=out, nosigint=True, readrc=False)
        debugger.set_trace()
    out.flush()
    number += 1
    ctx.engine.sleep(US)
    return number


@pytest.fixture
def debug():
    """Run ranks of which one stops and is given commands; return the Context and the talk."""

    def debugged(commands):
        out, before = io.StringIO(), sys.gettrace()
        try:
            with simrank.Context("hgx_h100") as ctx:
                spawn = ctx.multiprocessing.spawn
                spawn(stopping, (ctx, commands, out), nprocs=4, share_args=True)
            return ctx, out.getvalue()
        finally:
            sys.settrace(before)

    return debugged


def test_a_debugger_in_a_rank_says_who_stopped_and_when(debug):
    """A line before the first prompt, with rank and simulated time."""
    context, talk = debug("p number\nc\n")
    first, frame, rest = talk.split("\n", 2)
    assert first == "simrank: rank 3 at t=12.345 us"
    assert frame.endswith("stopping()")
    assert "\n-> number += 1\n(Pdb) 30\n" in rest
    assert context.now_ps == 13_345_000


def test_time_stands_still_at_the_prompt_and_passes_when_the_rank_goes_on(debug):
    """Stepping over a wait shows the time after it; the variables are the rank's."""
    _, talk = debug("p ctx.now_ps\nn\np number\nn\np number, ctx.now_ps\nc\n")
    assert talk.count("simrank: rank 3 at t=12.345 us") == 3
    assert talk.count("simrank: rank 3 at t=13.345 us") == 1
    assert "(Pdb) 12345000\n" in talk
    assert "(Pdb) (31, 13345000)\n" in talk


def test_a_value_set_at_the_prompt_is_the_ranks(debug):
    """As in a process."""
    _, talk = debug("!number = 77\nn\np number\nc\n")
    assert "(Pdb) 78\n" in talk


@pytest.mark.parametrize("wait", ["ctx.engine.sleep(5_000_000)", "ctx.zeros(2).tolist()"])
def test_a_wait_typed_at_the_prompt_is_refused(debug, wait):
    """Other ranks would run inside of it: time stands still, and goes on as before."""
    context, talk = debug(f"!{wait}\nn\np number\nc\n")
    assert "*** simrank.errors.SimrankError: this would wait for" in talk
    assert talk.count("simrank: rank 3 at t=") == 3
    assert "(Pdb) 31\n" in talk
    assert context.now_ps < 20_000_000


def stops_after_a_collective(rank, ctx, outs):
    """Stop on every rank while the result is still being computed."""
    dist.init_process_group("nccl")
    x = ctx.full((4,), float(rank))
    dist.all_reduce(x)
    stdin = io.StringIO(
        until(stops_after_a_collective, "y = (x") + "p x\np x.shape\nn\np y\nn\nn\nn\nn\n"
    )
    pdb.Pdb(stdin=stdin, stdout=outs[rank], nosigint=True, readrc=False).set_trace()
    outs[rank].flush()
    y = (x + 1).tolist()
    return y[0] + 1


def test_every_rank_stops_at_its_own_breakpoint_and_steps_in_its_own_program():
    """Whatever is printed there: no frame of simrank's is stepped into, and none is skipped."""
    outs = [io.StringIO() for _ in range(3)]
    before = sys.gettrace()
    try:
        with simrank.Context("hgx_h100") as ctx:
            ctx.multiprocessing.spawn(
                stops_after_a_collective, (ctx, outs), nprocs=3, share_args=True
            )
    finally:
        sys.settrace(before)
    for rank, out in enumerate(outs):
        talk = out.getvalue()
        assert talk.startswith(f"simrank: rank {rank} at t="), "its own prompt"
        assert "would wait for fill_" in talk
        assert "(Pdb) (4,)\n" in talk
        assert "(Pdb) [4.0, 4.0, 4.0, 4.0]\n" in talk
        assert str(Path(simrank.__file__).parent) not in talk


def test_quitting_the_debugger_ends_the_ranks(debug):
    """BdbQuit is the rank's error."""
    with pytest.raises(SpawnException) as caught:
        debug("q\n")
    assert [type(error).__name__ for error in caught.value.errors.values()] == ["BdbQuit"]


def test_post_mortem_shows_the_failing_line_and_its_variables(ctx):
    """The traceback of a root cause holds the rank's frames."""

    def failing(rank):
        secret = rank + 40
        ctx.engine.sleep(US)
        raise ValueError(secret)

    with pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(failing, nprocs=3)
    out = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("p secret\nq\n"), stdout=out, nosigint=True, readrc=False)
    debugger.reset()
    debugger.interaction(None, caught.value.errors[2].__traceback__)
    assert "-> raise ValueError(secret)\n(Pdb) 42\n" in out.getvalue()
    assert "simrank:" not in out.getvalue()


def test_pdb_is_its_own_again_outside_every_context():
    """The stand-in goes with the last Context."""
    before = pdb.Pdb.interaction
    with simrank.Context("hgx_h100"):
        assert pdb.Pdb.interaction is not before
    assert pdb.Pdb.interaction is before


PROGRAM = """
import simrank

def program(rank, ctx):
    ctx.engine.sleep(12_345_000 if rank == 3 else 1000)
    {stop}
    ctx.engine.sleep(1000)
    print("end of", rank)

with simrank.Context() as ctx:
    ctx.multiprocessing.spawn(program, (ctx,), nprocs=4)
"""


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["breakpoint()", "import pdb; pdb.set_trace()"])
def test_breakpoint_reads_commands_from_stdin(tmp_path, stop):
    """In a program of its own: the prompt, the answer, then the rest of the run."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(stop=f"if rank == 3: {stop}"))
    environment = {**os.environ, "PYTHONBREAKPOINT": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(path)],
        input="p rank * 2\nc\n",
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert "simrank: rank 3 at t=12.345 us\n" in done.stdout
    assert "(Pdb) 6\n" in done.stdout
    assert done.stdout.endswith("end of 3\n")


def deep(ctx, depth, rank):
    if depth:
        found = deep(ctx, depth - 1, rank)
        found += 1
    else:
        ctx.engine.sleep(US * (7 - rank))
        found = 0
    return found


def measured(rank, ctx):
    deep(ctx, rank, rank)
    if rank == 3:
        before = 1
        ctx.engine.sleep(5)
        before += 1
    if rank == 99:
        rank = -1


def lines_of(function):
    """Return the lines of a function's body."""
    code = function.__code__
    lines = {line for _, _, line in code.co_lines() if line is not None}
    return lines - {code.co_firstlineno}


def run_measured(carrier="greenlet"):
    with simrank.Context("hgx_h100", carrier=carrier) as ctx:
        ctx.multiprocessing.spawn(measured, (ctx,), nprocs=5)


def test_pythons_own_trace_counts_the_lines_of_every_rank():
    """Also those after a wait, on every rank; greenlets start with the thread's trace function."""
    before = sys.gettrace()
    tracer = trace.Trace(count=True, trace=False)
    try:
        tracer.runfunc(run_measured)
    finally:
        sys.settrace(before)
    counts = {
        line: count for (file, line), count in tracer.results().counts.items() if file == __file__
    }
    last = max(lines_of(measured))
    expected = (lines_of(measured) | lines_of(deep)) - {last}
    assert expected <= set(counts)
    assert last not in counts
    assert counts[last - 1] == 5
    assert counts[last - 2] == 1


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
def test_coverage_counts_lines_inside_ranks(carrier):
    """With `concurrency` set to the ranks' carrier, as for every program with either."""
    before = sys.gettrace()
    measure = coverage.Coverage(
        data_file=None, config_file=False, concurrency=carrier, include=[__file__]
    )
    try:
        measure.start()
        run_measured(carrier)
    finally:
        measure.stop()
        sys.settrace(before)
    found = set(measure.get_data().lines(__file__))
    last = max(lines_of(measured))
    assert (lines_of(measured) | lines_of(deep)) - {last} <= found
    assert last not in found


CELL = """
import simrank.distributed as dist
from time import sleep

class Options:
    def __init__(self):
        self.lr = 0.5

def program(rank, ctx, mode, options, seen):
    dist.init_process_group()
    sleep(2)
    options.lr += rank
    seen.append((rank, options.lr, ctx.now_ps))
    if mode == "hang" and rank == 1:
        return
    dist.barrier()
    if mode == "raise":
        raise ValueError("in a cell")

options = Options()
ctx.multiprocessing.spawn(program, (ctx, mode, options, seen), nprocs=2)
"""


@pytest.fixture(params=["<ipython-input-3-0a1b2c>", "/tmp/ipykernel_123/4567.py"])
def cell(request, monkeypatch):
    """Return what runs a notebook's cell in a `__main__` without a file, and the cell's name."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    lines = CELL.splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, request.param, (len(CELL), None, lines, request.param))

    def run_cell(mode, **options):
        seen = mp.Manager().list()
        with simrank.Context("hgx_h100", **options) as ctx:
            vars(main).update(ctx=ctx, mode=mode, seen=seen)
            exec(compile(CELL, request.param, "exec"), vars(main))  # noqa: S102 - as a notebook does
        return seen

    run_cell.file = request.param
    return run_cell


@pytest.mark.parametrize("strict", [False, True])
def test_functions_of_a_notebook_cell_are_spawned(cell, strict):
    """With copies of the cell's objects, and simulated clocks under the names it imported."""
    seen = cell("end", strict=strict)
    assert sorted((rank, lr) for rank, lr, _ in seen) == [(0, 0.5), (1, 1.5)]
    assert all(now_ps >= 2 * 10**12 for _, _, now_ps in seen)


def test_tracebacks_show_the_lines_of_a_notebook_cell(cell):
    """The text of SpawnException has the cell's source."""
    with pytest.raises(SpawnException) as caught:
        cell("raise")
    assert f'File "{cell.file}", line 18, in program\n    raise ValueError' in caught.value.msg


def test_reports_show_the_lines_of_a_notebook_cell(cell):
    """A deadlock names the cell and its line."""
    with pytest.raises(DeadlockError) as caught:
        cell("hang")
    state = caught.value.waits[0]
    assert (state.file, state.line) == (cell.file, 16)


# ---- what ranks set in `logging` is their own; loggers are the same objects for all ----


@pytest.fixture(name="bare_root")
def fixture_bare_root(monkeypatch):
    """Return what gives the root logger, without what a test session has put there meanwhile."""

    def make():
        root = logging.getLogger()
        monkeypatch.setattr(root, "handlers", [])
        monkeypatch.setattr(root, "level", logging.WARNING)
        return root

    return make


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
def test_each_rank_configures_logging_for_itself(bare_root, carrier):
    """As scripts do: rank 0 says more; handlers do not add up."""
    root = bare_root()
    texts = [io.StringIO() for _ in range(3)]
    library = logging.getLogger("somelib")

    def program(rank):
        level = logging.INFO if rank == 0 else logging.ERROR
        logging.basicConfig(level=level, format=f"{rank}: %(message)s", stream=texts[rank])
        time.sleep(1e-6)
        logging.info("started %d", rank)
        library.info("from a library")
        assert library.isEnabledFor(logging.INFO) == (rank == 0)
        time.sleep(1e-6)
        library.error("failed")
        assert len(root.handlers) == 1

    with simrank.Context("hgx_h100", carrier=carrier) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=3, share_args=True)
    assert texts[0].getvalue() == "0: started 0\n0: from a library\n0: failed\n"
    assert [text.getvalue() for text in texts[1:]] == ["1: failed\n", "2: failed\n"]
    assert root.handlers == []
    assert not library.isEnabledFor(logging.INFO)


def test_ranks_begin_with_what_the_main_program_has_set(bare_root):
    """Its handlers get their records; what one adds or disables is seen by nobody else."""
    text, root = io.StringIO(), bare_root()
    root.addHandler(logging.StreamHandler(text))
    logger = logging.getLogger("set up before")
    logger.setLevel(logging.INFO)

    def program(rank):
        if rank == 0:
            logging.disable(logging.CRITICAL)
            logger.addFilter(lambda record: False)
            logger.propagate = False
        time.sleep(1e-6)
        logger.info("%d", rank)

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2, share_args=True)
        logger.info("main")
    assert text.getvalue() == "1\nmain\n"
    assert (logger.filters, logger.propagate, logging.root.manager.disable) == ([], True, 0)


def test_a_logger_that_a_rank_makes_is_everybodys():
    """With what loggers begin with; what that rank has set in it stays its own."""
    found = {}

    def program(rank):
        if rank == 0:
            made = logging.getLogger("made by a rank")
            made.setLevel(logging.DEBUG)
            made.addHandler(logging.NullHandler())
        time.sleep(1e-6)
        logger = logging.getLogger("made by a rank")
        found[rank] = (logger, logger.level, len(logger.handlers))

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2, share_args=True)
    assert found[0][0] is found[1][0]
    assert (found[0][1:], found[1][1:]) == ((logging.DEBUG, 1), (logging.NOTSET, 0))
    assert (found[0][0].level, found[0][0].handlers) == (logging.NOTSET, [])


def test_nothing_is_left_in_the_class_afterwards():
    """Attributes of loggers are plain ones again."""
    with simrank.Context("hgx_h100"):
        assert isinstance(vars(logging.Logger)["level"], diagnostics.OwnName)
    assert "level" not in vars(logging.Logger)
    assert "_disable" not in vars(logging.Manager)


# ---- filters of warnings: each rank's own, in blocks that are held while others run ----

# Blocks that are held across a wait are what this is about.
# ruff: noqa: PT030, PT031


def test_blocks_that_ranks_hold_at_the_same_time_are_their_own(run):
    """One ignores, one records, one raises; the program's filters are what they were."""
    before, seen = (warnings.filters, list(warnings.filters), warnings.showwarning), {}

    def program(rank, ctx):
        time.sleep(0.1 * rank)
        with warnings.catch_warnings(record=rank == 1) as log:
            warnings.simplefilter(["ignore", "always", "error"][rank])
            time.sleep(1)
            try:
                warnings.warn(f"of {rank}", UserWarning, stacklevel=1)
                seen[rank] = [str(each.message) for each in log or ()]
            except UserWarning as error:
                seen[rank] = error
            time.sleep(1 - 0.3 * rank)

    run(program, 3)
    assert seen[0] == []
    assert seen[1] == ["of 1"]
    assert isinstance(seen[2], UserWarning)
    assert (warnings.filters, list(warnings.filters), warnings.showwarning) == before


def test_pytest_warns_in_ranks_sees_the_warnings_of_its_rank(run):
    """Blocks that overlap without being nested."""

    def program(rank, ctx):
        time.sleep(0.1 * rank)
        with pytest.warns(UserWarning, match=f"of {rank}") as record:
            time.sleep(1)
            warnings.warn(f"of {rank}", UserWarning, stacklevel=1)
        assert len(record) == 1

    run(program, 3)


def test_a_filter_that_a_rank_sets_for_good_ends_with_it(run):
    """As its process would; the next run starts with the program's."""
    before = list(warnings.filters)

    def program(rank, ctx):
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="other")
        assert len(warnings.filters) == len(before) + 2
        warnings.showwarning = print
        warnings.warn("nobody sees it", UserWarning, stacklevel=1)
        warnings.resetwarnings()
        assert warnings.filters == []

    run(program, 2)
    assert warnings.filters == before
    assert type(warnings) is type(simrank)


def test_a_rank_may_show_warnings_its_own_way(run):
    """By `warnings.showwarning`, as ever."""
    shown = []

    def program(rank, ctx):
        warnings.simplefilter("always")
        if rank == 0:
            warnings.showwarning = lambda message, *rest: shown.append(str(message))
            time.sleep(1)
            warnings.warn("of 0", UserWarning, stacklevel=1)
        else:
            with pytest.warns(UserWarning):
                time.sleep(2)
                warnings.warn("of 1", UserWarning, stacklevel=1)

    run(program, 2)
    assert shown == ["of 0"]


def test_a_block_of_the_main_program_is_the_ranks_too(ctx):
    """What it records comes from ranks as well."""
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        ctx.multiprocessing.spawn(lambda rank: warnings.warn("w", UserWarning, 1), nprocs=2)
    assert len(log) == 2


def test_decimal_contexts_are_a_ranks_own(run):
    """As everything that is kept in contextvars."""

    def program(rank, ctx):
        with decimal.localcontext() as context:
            context.prec = 3 + rank
            time.sleep(1)
            assert str(decimal.Decimal(1) / 3) == "0." + "3" * (3 + rank)
            time.sleep(rank)

    run(program, 3)
    assert decimal.getcontext().prec == 28
