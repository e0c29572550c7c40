"""A script as `__main__`, and what the processes have that it spawns."""

import textwrap

import pytest

import simrank
from simrank.errors import SpawnException
from simrank.isolation.private_modules import FINDER
from simrank.multiprocessing.script import run_module, run_script

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
