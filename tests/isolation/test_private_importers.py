"""Modules that have taken something of a private package go with it."""

import functools
import importlib
import sys
import textwrap
from types import ModuleType

import pytest

import simrank
from simrank.errors import SpawnException
from simrank.isolation.private_importers import importers_of

FILES = {
    "site-packages/accelerate/__init__.py": """
        from accelerate.state import State
    """,
    "site-packages/accelerate/state.py": """
        class State:
            known = {}
            def __init__(self, rank):
                self.rank = self.known.setdefault("rank", rank)
    """,
    "site-packages/onto/__init__.py": """
        from accelerate import State as Base
        class Trainer(Base):
            pass
    """,
    "site-packages/apart/__init__.py": """
        from collections import Counter
    """,
    "helper.py": """
        from accelerate import State
        def make(rank):
            return State(rank)
    """,
    "plain.py": """
        found = []
        def run(rank, found):
            import accelerate
            found.append(accelerate.State(rank).rank)
    """,
    "program.py": """
        import functools
        import helper, onto
        from accelerate import State
        import simrank

        TRAINERS = []

        class Job:
            def __init__(self, kind):
                self.kind = kind
            def run(self, rank, found, of_main):
                assert type(self) is Job
                assert self.kind is State
                run(rank, found, of_main)
            @classmethod
            def of_class(cls, rank, found, of_main):
                assert cls is Job
                run(rank, found, of_main)

        def run(rank, found, of_main):
            TRAINERS.append(rank)
            assert isinstance(of_main, State)
            ranks = State(rank).rank, helper.make(rank).rank, onto.Trainer(rank).rank
            found.append((rank, ranks, TRAINERS, __name__))

        class Wrong(Exception):
            pass

        def fail(rank, found, of_main):
            raise Wrong(rank)

        def local():
            def inner(rank, found, of_main):
                run(rank, found, of_main)
            return inner

        def spawn(fn, found, of_main):
            with simrank.Context("hgx_h100", carrier="thread") as ctx:
                ctx.multiprocessing.spawn(fn, (found, of_main), 2)

        if __name__ == "__main__":
            spawn(run, FOUND, State(7))
    """,
}


class Found(list):
    """What ranks have found; they share it."""

    __module__ = "simrank.shared_with_ranks"  # Of simrank's own things none is copied.


@pytest.fixture(name="files")
def fixture_files(tmp_path, monkeypatch):
    """Write the files, and forget what was imported of them."""
    names = {
        name.removeprefix("site-packages/").partition("/")[0].removesuffix(".py") for name in FILES
    }
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[name]


def spawned(choose):
    """Spawn a function of a module that the main program has imported, and return what is found."""
    program, found = importlib.import_module("program"), Found()
    program.spawn(choose(program), found, program.State(7))
    return program, found


@pytest.mark.parametrize(
    "choose",
    [
        lambda program: program.run,
        lambda program: functools.partial(program.run),
        lambda program: program.Job(program.State).run,
        lambda program: program.Job.of_class,
    ],
    ids=["function", "partial", "method", "class method"],
)
def test_ranks_execute_a_module_that_has_taken_what_is_private(files, choose):
    """With all it imports; arguments arrive as objects of their own classes."""
    program, found = spawned(choose)
    assert found == [(rank, (rank,) * 3, [rank], "program") for rank in range(2)]
    assert program.State.known == {"rank": 7}, "the main program's is its own"
    assert program.TRAINERS == []
    assert sys.modules["program"] is program


def test_a_local_function_shares_what_its_module_has_and_a_warning_says_so(files):
    """It cannot be found in a copy of the module."""
    text = r"ranks share what program has imported of accelerate.*: local\.<locals>\.inner cannot"
    with pytest.warns(UserWarning, match=text) as caught:
        program, found = spawned(lambda program: program.local())
    assert [ranks for _, ranks, *_ in found] == [(7, 7, 7)] * 2
    assert found[0][2] is not None
    assert program.TRAINERS == [0, 1]
    assert caught[0].filename == program.__file__, "the line that spawns"


def test_errors_of_ranks_are_of_classes_of_who_waits_for_them(files):
    """It looks for those that it knows; their text, notes and traces are the rank's."""
    with pytest.raises(SpawnException) as failure:
        spawned(lambda program: program.fail)
    errors = failure.value.errors
    assert [type(errors[rank]) is sys.modules["program"].Wrong for rank in range(2)] == [True] * 2
    assert [errors[rank].args for rank in range(2)] == [(0,), (1,)]
    assert errors[0].__notes__ == ["simrank: raised by rank 0 at t=0.000 us"]


@pytest.mark.parametrize("is_taken", [False, True])
def test_what_is_no_function_of_python_is_called(files, is_taken):
    """A method of a list is of no module."""
    if is_taken:
        importlib.import_module("program")
    found = Found()
    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        ctx.multiprocessing.spawn(found.append, nprocs=3)
    assert found == [0, 1, 2]


def test_a_module_that_has_taken_nothing_is_shared(files):
    """What it imports later is each rank's own all the same."""
    plain, found = importlib.import_module("plain"), Found()
    importlib.import_module("accelerate")
    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        ctx.multiprocessing.spawn(plain.run, (found,), 3)
    assert found == [0, 1, 2]


def run_as_main(files, monkeypatch, *, source=None, is_typed=False):
    """Let the program be the main one, as `python program.py` would; return it afterwards."""
    source = (files / "program.py").read_text() if source is None else source
    (files / "program.py").write_text(source)
    main = ModuleType("__main__")
    main.__spec__, main.FOUND = None, Found()
    if not is_typed:
        main.__file__ = str(files / "program.py")
    monkeypatch.setitem(sys.modules, "__main__", main)
    other = ModuleType("__main__")  # As multiprocessing leaves it: the one that was there first.
    other.__file__ = str(files / "plain.py")
    monkeypatch.setitem(sys.modules, "__mp_main__", other)
    exec(compile(source, "program.py", "exec"), vars(main))  # noqa: S102 - as Python does
    return main


def test_a_main_program_is_executed_by_each_rank_as_processes_do(files, monkeypatch):
    """Under the name that multiprocessing gives it, so that it does not spawn again."""
    main = run_as_main(files, monkeypatch)
    assert list(main.FOUND) == [(rank, (rank,) * 3, [rank], "__mp_main__") for rank in range(2)]
    assert sys.modules["__main__"] is main
    assert sys.modules["__mp_main__"].__file__ == str(files / "plain.py")


def test_a_main_program_that_spawns_without_a_guard_is_told(files, monkeypatch):
    """As multiprocessing tells it."""
    source = textwrap.dedent(FILES["program.py"]).replace('__name__ == "__main__"', "True")
    source = source.replace("FOUND,", "[],")
    with pytest.raises(SpawnException, match='to fix: start processes under `if __name__ == "__m'):
        run_as_main(files, monkeypatch, source=source)


def test_what_was_typed_at_a_prompt_is_shared_and_a_warning_says_so(files, monkeypatch):
    """There is no file to execute."""
    with pytest.warns(UserWarning, match="what __main__ has imported of accelerate"):
        main = run_as_main(files, monkeypatch, is_typed=True)
    assert [ranks for _, ranks, *_ in main.FOUND] == [(7, 7, 7)] * 2


def test_ranks_of_ranks_execute_the_main_program_again(files, monkeypatch):
    """Each is a new process."""
    again = """
def again(rank, found, of_main):
    assert State(rank + 5).rank == rank + 5
    simrank.multiprocessing.spawn(run, (found, of_main), 2)

if __name__ == "__main__":
    spawn(again, FOUND, State(7))
"""
    source = textwrap.dedent(FILES["program.py"]).partition("if __name__")[0] + again
    main = run_as_main(files, monkeypatch, source=source)
    expected = [(rank, (rank,) * 3, [rank], "__mp_main__") for rank in range(2)]
    assert sorted(main.FOUND) == sorted(expected * 2)


def test_what_ranks_send_is_of_classes_of_the_main_program(files, monkeypatch):
    """Pickled under the name that their main module has, which the program need not have."""
    send = """
def send(rank, queue):
    State(rank)
    queue.put(Job(rank))

if __name__ == "__main__":
    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        queue = ctx.multiprocessing.Queue()
        ctx.multiprocessing.spawn(send, (queue,), 2)
        FOUND += [queue.get() for _ in range(2)]
"""
    source = textwrap.dedent(FILES["program.py"]).partition("if __name__")[0] + send
    main = run_as_main(files, monkeypatch, source=source)
    assert [(type(job) is main.Job, job.kind) for job in main.FOUND] == [(True, 0), (True, 1)]


def test_takers_are_found_through_others_that_have_taken_and_by_package_where_installed(files):
    """A module that merely imports a taker's function has taken, too."""
    importlib.import_module("apart")
    importlib.import_module("program")
    (files / "third.py").write_text("from helper import make\n")
    (files / "fourth.py").write_text("import third\n")
    try:
        importlib.import_module("fourth")
        importers = dict(importers_of(frozenset({"accelerate"})))
    finally:
        sys.modules.pop("third", None)
        sys.modules.pop("fourth", None)
    expected = dict.fromkeys(("onto", "helper", "program", "third", "fourth"), "accelerate")
    assert {name: importers.get(name) for name in expected} == expected
    assert "apart" not in importers
    assert importers_of(frozenset({"nobody_imported_this"})) == {}
