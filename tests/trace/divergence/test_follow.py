"""Planted bugs: the branch that is named is the one that leads to the hang, not another."""

import builtins
import sys

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import DeadlockError, LivelockError, SpawnException
from simrank.trace.divergence import follow
from simrank.trace.divergence.follow import Tracing, _is_library
from simrank.trace.divergence.track import EXIT, CodeNumbers, Track, encode, kind_of, line_of
from tests.trace.divergence import helper

NPROCS = 3


def found(program, carrier="greenlet", nprocs=NPROCS, **settings):
    """Run a program that fails; return where its ranks parted, and the failure."""
    settings = {"carrier": carrier, "divergence": True, **settings}
    failures = (DeadlockError, LivelockError, SpawnException)
    with pytest.raises(failures) as caught, simrank.Context.for_ranks(nprocs, **settings) as ctx:
        ctx.multiprocessing.spawn(program, args=(ctx,), nprocs=nprocs)
    return ctx.divergence.diverged_at, caught.value


def marked(program, word="here"):
    """Return the number of the program's line that is marked."""
    code = program.__code__
    with open(code.co_filename) as file:
        lines = file.read().splitlines()
    first = code.co_firstlineno
    return next(n for n in range(first, len(lines) + 1) if lines[n - 1].endswith(f"# {word}"))


def sides(diverged_at):
    return {side.did: (side.ranks, dict(side.values)) for side in diverged_at.sides}


def reduce(ctx):
    dist.all_reduce(ctx.ones(2))
    ctx.synchronize()


def begin(rank, ctx):
    """Start the group, with a branch that does no harm."""
    dist.init_process_group("nccl")
    if rank == 0:
        len("log")
    reduce(ctx)


def skipped(rank, ctx):
    begin(rank, ctx)
    loss = 2.5 + rank
    if rank == 1:
        len("log")
    if loss > 3:  # here
        reduce(ctx)


def one_more(rank, ctx):
    begin(rank, ctx)
    num = 4 if rank == 2 else 3
    for step in range(num):  # here
        if rank == 0:
            str(step)
        reduce(ctx)


def one_more_while(rank, ctx):
    begin(rank, ctx)
    left = 3 + (rank == 2)
    while left:  # here
        left -= 1
        reduce(ctx)


def step_of(loss, ctx):
    if loss > 4:  # here
        return
    reduce(ctx)


def returns_early(rank, ctx):
    begin(rank, ctx)
    for step in range(4):
        step_of(step * rank, ctx)


def continues(rank, ctx):
    begin(rank, ctx)
    for step in range(4):
        if rank == 0 and step == 1:
            len("log")
        if step * rank == 4:  # here
            continue
        reduce(ctx)


def breaks(rank, ctx):
    begin(rank, ctx)
    for step in range(6):
        reduce(ctx)
        if step * rank == 4:  # here
            break


def check(rank):
    if rank == 1:  # here
        raise ValueError("planted")


def swallows(rank, ctx):
    begin(rank, ctx)
    try:
        check(rank)
        reduce(ctx)
    except ValueError:
        len("log")


def swallows_library_error(rank, ctx):
    begin(rank, ctx)
    text = "x" if rank == 1 else "3"
    try:
        int(text)  # here
        reduce(ctx)
    except ValueError:
        len("log")


def descend(depth, rank, ctx):
    if depth > rank:  # here
        return
    descend(depth + 1, rank, ctx)
    reduce(ctx)


def recurses(rank, ctx):
    begin(rank, ctx)
    descend(0, min(rank, 1), ctx)


def comprehends(rank, ctx):
    begin(rank, ctx)
    sizes = [2] * (2 + (rank == 2))
    [reduce(ctx) for _ in sizes]  # here


def in_one_line(rank, ctx):
    begin(rank, ctx)
    flag = rank == 1
    reduce(ctx) if flag else None  # here
    len("after")


def of_helper(rank, ctx):
    begin(rank, ctx)
    if helper.is_large(rank):  # here
        reduce(ctx)


def raises(rank, ctx):
    begin(rank, ctx)
    loss = 1.5 * rank
    if loss > 2:  # here
        raise ValueError("planted")
    reduce(ctx)


def other_operation(rank, ctx):
    begin(rank, ctx)
    if rank == 0:
        len("log")
    if rank:  # here
        dist.broadcast(ctx.ones(2), 0)
    else:
        dist.all_reduce(ctx.ones(2))
    ctx.synchronize()


def iterations_before(rank, ctx):
    """The call that is missing was skipped long before the end, and those after it match."""
    begin(rank, ctx)
    for step in range(5):
        if rank != 1 or step != 1:  # here
            reduce(ctx)
        len("rest")


def each_skips_another(rank, ctx):
    """What ranks skip in turns is made up for by the end of the loop; the fault comes after."""
    begin(rank, ctx)
    for step in range(5):
        if step != rank:
            reduce(ctx)
    if rank == 2:  # here
        reduce(ctx)


def matches(rank, ctx):
    begin(rank, ctx)
    match rank:  # here
        case 0:
            reduce(ctx)
        case 1 | 2 if rank > 1:
            len("other")
        case _:
            reduce(ctx)


def made_up_for(rank, ctx):
    """Both sides call in branches of their own, which is right; the fault comes after."""
    begin(rank, ctx)
    x = ctx.ones(2)
    if rank == 0:
        dist.broadcast(x, 0)
    len("between")
    if rank != 0:
        dist.broadcast(x, 0)
    if rank == 2:  # here
        reduce(ctx)


def half_made(rank, ctx):
    begin(rank, ctx)
    if rank != 2:  # here
        dist.barrier(dist.new_group([0, 1, 2]))


def unmatched_receive(rank, ctx):
    begin(rank, ctx)
    x = ctx.ones(4)
    if rank == 0:
        dist.send(x, 1)
    elif rank == 1:
        dist.recv(x, 0)
    flag = rank == 1
    if flag:  # here
        dist.recv(x, 0)
    ctx.synchronize()


PROGRAMS = [
    skipped, one_more, one_more_while, continues, breaks, swallows_library_error, comprehends,
    in_one_line, of_helper, raises, other_operation, iterations_before, made_up_for, half_made,
    each_skips_another, matches, unmatched_receive,
]  # fmt: skip


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_branch_that_leads_to_the_failure_is_named(program, carrier):
    """Not one of those before it that do no harm."""
    diverged_at, error = found(program, carrier)
    assert diverged_at is not None, error
    assert (diverged_at.file, diverged_at.line) == (__file__, marked(program)), diverged_at
    assert f"diverged at test_follow.py:{diverged_at.line} `{diverged_at.text}`: " in str(error)


@pytest.mark.parametrize(
    ("program", "named"), [(returns_early, step_of), (swallows, check), (recurses, descend)]
)
def test_a_branch_in_a_function_that_was_called_is_named(program, named):
    """In the call in which the ranks parted, however deep."""
    diverged_at, _ = found(program)
    assert diverged_at.line == marked(named), diverged_at


def test_what_the_condition_saw_is_told_for_each_side():
    """The values of its names, at that time."""
    diverged_at, _ = found(skipped)
    assert sides(diverged_at) == {
        "did not": ((0,), {"loss": "2.5"}),
        "took it": ((1, 2), {"loss": "3.5, 4.5"}),
    }
    assert diverged_at.text == "if loss > 3:"


def test_a_loop_is_left_by_some_and_gone_round_by_others():
    """With the loop's own variable, and what it ran over."""
    diverged_at, _ = found(one_more)
    assert sides(diverged_at) == {
        "left it": ((0, 1), {"step": "2", "num": "3"}),
        "went round": ((2,), {"step": "3", "num": "4"}),
    }


def test_an_exception_is_named_where_it_parted_the_ranks():
    """Though it was swallowed."""
    diverged_at, _ = found(swallows_library_error)
    assert (1,) in [side.ranks for side in diverged_at.sides if side.did == "raised ValueError"]


def test_the_line_is_part_of_the_report():
    """One line, before what is to be fixed; and of its JSON."""
    _, error = found(skipped)
    lines = str(error).splitlines()
    expected = "  diverged at test_follow.py:{} `if loss > 3:`: rank 0 did not (loss = 2.5); "
    assert lines[-2].startswith(expected.format(marked(skipped)))
    assert lines[-1].startswith("  to fix: ")
    assert error.to_json()["diverged_at"]["line"] == marked(skipped)


def same_line(rank, ctx):
    begin(rank, ctx)
    dist.all_reduce(ctx.ones(2 + rank))


def one_sided(rank, ctx):
    begin(rank, ctx)
    dist.recv(ctx.ones(2), (rank + 1) % NPROCS)
    ctx.synchronize()


@pytest.mark.parametrize("program", [same_line, one_sided])
def test_nothing_is_said_where_no_branch_parted_the_ranks(program):
    """They make different calls at the same line."""
    diverged_at, error = found(program)
    assert diverged_at is None
    assert "diverged at" not in str(error)


def tensors(rank, ctx):
    begin(rank, ctx)
    loss, pending = ctx.tensor([2.5 + rank]), ctx.ones(3)
    if loss.item() > 3 and pending is not None:  # here
        reduce(ctx)


def test_tensors_are_shown_without_waiting_for_them():
    """The value of one number that is there, else the shape."""
    diverged_at, _ = found(tensors)
    assert sides(diverged_at)["did not"][1] == {"loss": "2.5", "pending": "tensor of shape (3,)"}


def test_simulated_times_are_those_of_a_run_that_nobody_follows():
    """Values are read without a host read."""
    _, followed = found(tensors)
    _, plain = found_without(tensors)
    assert followed.time_ps == plain.time_ps


def found_without(program):
    with pytest.raises(DeadlockError) as caught, simrank.Context.for_ranks(NPROCS) as ctx:
        ctx.multiprocessing.spawn(program, args=(ctx,), nprocs=NPROCS)
    return ctx.divergence, caught.value


def test_nobody_is_followed_unless_asked():
    """No tracer runs, and the library tells nobody of calls."""
    follower, error = found_without(skipped)
    assert follower is None
    assert error.diverged_at is None


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
def test_the_tracer_and_imports_are_as_before(carrier):
    """After a run that failed."""
    before = sys.gettrace(), __import__
    found(skipped, carrier)
    assert (sys.gettrace(), __import__) == before


@pytest.mark.skipif(follow.is_there(), reason="monitoring is no tracer")
def test_another_tracer_is_left_alone():
    """Coverage and debuggers go on; nothing is said then."""

    def tracer(*_):
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        diverged_at, _ = found(skipped)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    assert diverged_at is None


# ---- the tracer is off while libraries are imported, and gone when the last rank has ended ----


@pytest.fixture
def track():
    return Track(0, CodeNumbers())


def traced(track, body, **options):
    Tracing(track._codes, lambda: track).run(body, **{"is_shared": False, **options})


def body():
    for _ in range(2):
        pass


def test_lines_are_followed_in_the_order_they_are_executed(track):
    """A call, its lines, its end."""
    traced(track, body)
    first = body.__code__.co_firstlineno
    events = [(kind_of(event), line_of(event) - first) for event in track.events]
    assert [line for kind, line in events if kind == 0] == [1, 2, 1, 2, 1]
    assert [kind for kind, _ in events if kind] == [1, 2]


def test_a_generator_that_is_closed_elsewhere_is_no_part_of_the_track(track):
    """The hub collects what ranks have left, and follows nobody."""
    running = [track]

    def generate():
        yield 1
        yield 2

    def leaves():
        left = generate()
        next(left)
        before = len(track.events)
        running.clear()
        left.close()
        running.append(track)
        assert len(track.events) == before + 4  # Its own lines.

    codes = track._codes
    follows = Tracing(codes, lambda: running[0] if running else None)
    follows.run(leaves, is_shared=False)
    assert track.events[-1] == encode(EXIT, codes.code(leaves.__code__).number)


def test_everything_is_as_before_at_the_end(track):
    """The tracer and `__import__`, also after an error."""
    before = sys.gettrace(), builtins.__import__

    def fails():
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        traced(track, fails)
    assert (sys.gettrace(), builtins.__import__) == before


def test_libraries_are_imported_without_the_tracer(track, tmp_path, monkeypatch):
    """The program's own modules with it."""
    (tmp_path / "own_module_of_test.py").write_text("import sys\nTRACE = sys.gettrace()\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen = {}

    def imports():
        import colorsys  # noqa: F401 - a module that nobody else imports

        import own_module_of_test

        seen["own"] = own_module_of_test.TRACE

    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    traced(track, imports)
    monkeypatch.delitem(sys.modules, "own_module_of_test")
    assert seen["own"] is not None
    assert _is_library("colorsys")
    assert _is_library("numpy")
    assert not _is_library("own_module_of_test")
