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
from simrank.isolation.private_modules import FINDER
from simrank.multiprocessing.script import run_module, run_script

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


# ---- a script as `__main__`, and what the processes have that it spawns ----

HELPER = """
    import helper

    STATE = []

    class Config:
        def __init__(self, values):
            self.values = values

        def told(self, rank, seen):
            seen.append((type(self) is Config, self.values))

    def work():
        STATE.append(1)
        return STATE is helper.STATE and len(STATE)
"""
HEAD = """
    import multiprocessing, sys
    import simrank.multiprocessing as mp
    import helper

    STATE = []
    seen = mp.Manager().list()
    Fresh = multiprocessing.get_context("spawn").Process

    class Kind:
        pass
"""


@pytest.fixture(name="run")
def fixture_run(tmp_path, capsys):
    """Run a script on one rank that is a thread, and return what it prints."""
    (tmp_path / "helper.py").write_text(textwrap.dedent(HELPER))

    def run(body, *args, carrier="thread", **settings):
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(HEAD) + textwrap.dedent(body))
        with simrank.Context("hgx_h100", carrier=carrier, **settings) as ctx:
            run_script(ctx.program, path, args, 1)
        return capsys.readouterr().out.splitlines()

    return run


SPAWNS = {
    "spawn": "mp.spawn(child, args=({args}), nprocs=2)",
    "start_processes": "mp.start_processes(child, ({args}), 2, start_method='forkserver')",
    "process": """
        children = [Fresh(target=child, args=(rank, {args})) for rank in range(2)]
        for each in children:
            each.start()
        for each in children:
            each.join()
            assert each.exitcode == 0
    """,
}


def spawning(how, args):
    """Return the guarded end of a script that spawns its function `child`."""
    body = textwrap.indent(textwrap.dedent(SPAWNS[how].format(args=args)), "    ")
    return f'\nif __name__ == "__main__":\n    STATE.append("parent")\n{body}\n    print(STATE)\n'


@pytest.mark.parametrize("how", SPAWNS)
def test_what_a_script_spawns_has_globals_of_its_own(run, how):
    """Neither the parent's, nor those of each other; the command line is the parent's."""
    body = """
def child(rank, where):
    global N
    STATE.append(rank)
    N += 1
    print(where, rank, STATE, N, helper.work(), __name__, sys.argv[1:])

N = 0
helper.work()
"""
    expected = [f"child {rank} [{rank}] 1 2 __mp_main__ ['--lr']" for rank in range(2)]
    assert sorted(run(body + spawning(how, "'child',"), "--lr"))[1:] == expected


@pytest.mark.parametrize("how", SPAWNS)
def test_functions_classes_and_objects_arrive_as_the_childs_own(run, how):
    """By name, with what they hold; a local function and what ranks share arrive as they are."""
    body = """
def child(rank, work, config, kind, inner, event, local):
    assert work is helper.work and work() == 1
    assert type(config) is helper.Config and config.values is not helper.STATE
    assert kind is Kind and type(inner["of"]) is Kind
    print(rank, config.values, event is local())
"""
    end = spawning(
        how, "helper.work, helper.Config([1]), Kind, {'of': Kind()}, event, lambda: event"
    )
    found = run(body + end.replace('("parent")', '("parent")\n    event = mp.Event()'))
    assert sorted(found) == ["0 [1] True", "1 [1] True", "['parent']"]


def test_ranks_on_greenlets_have_the_script_anew_and_share_what_it_imports(run):
    """As ranks of a script do there."""
    body = """
    def child(rank, kind, inner, queue):
        STATE.append(rank)
        assert kind is Kind is type(inner)
        helper.STATE.append(rank)
        queue.put((Kind(), Kind))
        print(STATE, helper.STATE, __name__)

    if __name__ == "__main__":
        queue = mp.Queue()
        STATE.append("parent")
        mp.spawn(child, args=(Kind, Kind(), queue), nprocs=2)
        print(STATE, [type(inner) is kind is Kind for inner, kind in (queue.get(), queue.get())])
    """
    assert run(body, carrier="greenlet") == [
        "[0] [0] __mp_main__", "[1] [0, 1] __mp_main__", "['parent'] [True, True]"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("carrier", "is_entered"), [("greenlet", True), ("greenlet", False), ("thread", True)]
)
def test_ranks_of_a_context_that_a_script_makes_are_the_scripts(run, carrier, is_entered):
    """As in a program that `python` runs: they share its modules, and need no guard."""
    body = """
    import contextlib, simrank

    def child(rank, kind, inner, work):
        STATE.append(rank)
        assert kind is Kind is type(inner) and work is helper.work

    ctx = simrank.Context("hgx_h100", carrier=CARRIER)
    with ctx if ENTERED else contextlib.nullcontext():
        ctx.multiprocessing.spawn(child, args=(Kind, Kind(), helper.work), nprocs=2)
    print(STATE)
    """
    body = body.replace("CARRIER", repr(carrier)).replace("ENTERED", str(is_entered))
    assert run(body, carrier=carrier) == ["[0, 1]"]


def test_a_bound_method_and_what_its_object_holds_are_the_childs_own(run):
    """A real spawn pickles the object."""
    assert run("""
    if __name__ == "__main__":
        mp.spawn(helper.Config([1]).told, args=(seen,), nprocs=2)
        print(seen)
    """) == ["[(True, [1]), (True, [1])]"]


def test_a_process_with_a_run_of_its_own_is_a_copy(run):
    """Of the child's own class; what it sets is not the parent's."""
    assert run("""
    class Writer(Fresh):
        def __init__(self, queue):
            super().__init__()
            self.queue, self.seen = queue, []

        def run(self):
            STATE.append(1)
            self.seen.append(1)
            self.queue.put((type(self) is Writer, len(STATE), len(self.seen)))

    if __name__ == "__main__":
        writer = Writer(mp.Queue())
        writer.start()
        writer.join()
        print(writer.queue.get(), writer.seen, STATE, writer.exitcode)
    """) == ["(True, 1, 1) [] [] 0"]


def test_what_a_child_puts_into_a_queue_arrives_as_the_parents_own(run):
    """And the other way; with what it holds, as pickled."""
    assert run("""
    def child(rank, there, back):
        got = there.get()
        assert type(got) is helper.Config
        back.put([Kind(), got, helper.Config])

    if __name__ == "__main__":
        there, back, kept = mp.Queue(), mp.SimpleQueue(), helper.Config([2])
        there.put(kept)
        kept.values.append(3)
        mp.spawn(child, args=(there, back))
        inner, config, kind = back.get()
        print(type(inner) is Kind, type(config) is kind is helper.Config, config.values)
    """) == ["True True [2]"]


def test_children_of_children_are_new_again(run):
    """They find the script and its modules where their parent has found them."""
    assert run("""
    def grandchild(rank, config):
        STATE.append(rank)
        print("grandchild", STATE, type(config) is helper.Config)

    def child(rank, config):
        STATE.append("child")
        mp.spawn(grandchild, args=(config,))
        Fresh(target=grandchild, args=(1, config)).start()

    if __name__ == "__main__":
        mp.spawn(child, args=(helper.Config([]),))
    """) == ["grandchild [0] True", "grandchild [1] True"]


def test_a_process_that_is_forked_goes_on_with_the_modules_of_its_rank(run):
    """It executes nothing anew, and its imports are the rank's."""
    assert run("""
    def child(rank, work):
        import helper
        print(work is helper.work, work(), __name__)

    if __name__ == "__main__":
        helper.work()
        mp.start_processes(child, (helper.work,), start_method="fork")
        made = multiprocessing.get_context("fork").Process(target=child, args=(0, helper.work))
        made.start()
    """) == ["True 2 __main__", "True 3 __main__"]


def test_shared_arguments_stay_the_parents(run):
    """What is asked for by simrank's own option: nothing is executed anew."""
    assert run("""
    def child(rank, state):
        state.append(rank)
        print(state is STATE, __name__)

    mp.spawn(child, args=(STATE,), share_args=True)
    print(STATE)
    """) == ["True __main__", "[0]"]


@pytest.mark.parametrize(
    "start",
    [
        "mp.spawn(child)",
        "mp.spawn(child, share_args=True)",
        "Fresh(target=child, args=(0,)).start()",
    ],
)
def test_a_script_that_spawns_as_a_child_begins_is_told_to_look_at_its_name(run, start):
    """With multiprocessing's own type of error."""
    with pytest.raises(SpawnException) as caught:
        run(f"def child(rank): pass\nmp.spawn(print) if __name__ == '__main__' else {start}")
    error = caught.value.errors[0].errors[0]
    assert type(error) is RuntimeError
    assert 'under `if __name__ == "__main__":`' in str(error)
    assert "simrank: raised as a spawned process executed the script" in error.__notes__[0]


def test_a_function_that_only_the_guarded_part_defines_cannot_be_found(run):
    """As in real children."""
    with pytest.raises(SpawnException) as caught:
        run("if __name__ == '__main__':\n    def child(rank): pass\n    mp.spawn(child)")
    error = caught.value.errors[0].errors[0]
    assert type(error) is AttributeError
    assert "child" in str(error)


def test_a_module_that_runs_as_main_is_found_by_its_children(tmp_path, monkeypatch, capsys):
    """With its package, for what it imports from it."""
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "state.py").write_text("STATE = []\n")
    (tmp_path / "steps" / "train.py").write_text(
        "import simrank.multiprocessing as mp\nfrom .state import STATE\n\n"
        "def child(rank):\n    STATE.append(rank)\n    print(STATE, __name__, __package__)\n\n"
        "if __name__ == '__main__':\n    STATE.append('parent')\n    mp.spawn(child, nprocs=2)\n"
    )
    (tmp_path / "steps" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        run_module(ctx.program, "steps.train", [], 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["[0] __mp_main__ steps", "[1] __mp_main__ steps"]


def test_nothing_is_left_of_a_script(run):
    """The process has its own `__main__` again."""
    import sys

    before = sys.modules["__main__"]
    run("if __name__ == '__main__':\n    mp.spawn(print)")
    assert sys.modules["__main__"] is before
    assert "helper" not in sys.modules
    assert FINDER not in sys.meta_path
