"""Modules that each rank executes for itself."""

import importlib
import pickle
import sys
import textwrap
import time
from types import ModuleType

import pytest

import simrank
from simrank.isolation.private_modules import FINDER, PrivateModules, modules_of, own_copy
from simrank.multiprocessing.script import run_script

SOURCE = """
    import os
    executed_by = os.environ.get("RANK")
    counter = 0
    seen = []

    class Thing:
        shared = 0

    def count():
        global counter
        counter += 1
        seen.append(counter)
        Thing.shared += 1
        return counter, seen, Thing.shared
"""


@pytest.fixture(name="package")
def fixture_package(tmp_path, monkeypatch):
    """Write a package with two modules, and forget it afterwards."""
    folder = tmp_path / "stateful"
    folder.mkdir()
    (folder / "__init__.py").write_text("from stateful.state import count\n")
    (folder / "state.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.syspath_prepend(tmp_path)
    yield "stateful"
    for name in [name for name in sys.modules if name.partition(".")[0] == "stateful"]:
        del sys.modules[name]


def run(program, nprocs=3, *args, **settings):
    """Run a program on threads."""
    with simrank.Context("hgx_h100", carrier="thread", **settings) as ctx:
        ctx.multiprocessing.spawn(program, args, nprocs, share_args=True)
    return ctx


def test_each_rank_has_globals_containers_and_class_attributes_of_its_own(package):
    """Through waits; and it was executed with the rank's environment."""
    results = {}

    def program(rank):
        module = importlib.import_module(f"{package}.state")
        for _ in range(rank + 1):
            time.sleep(1e-6)
            importlib.import_module(package).count()
        results[rank] = (module.counter, len(module.seen), module.Thing.shared, module.executed_by)
        assert sys.modules[f"{package}.state"] is module

    run(program, private=[package])
    assert results == {rank: (rank + 1, rank + 1, rank + 1, str(rank)) for rank in range(3)}
    assert package not in sys.modules
    assert FINDER not in sys.meta_path


def test_what_the_main_program_has_imported_stays_its_own(package):
    """Ranks see theirs under the same name, the main program its own again."""
    outside = importlib.import_module(f"{package}.state")
    outside.count()

    def program(rank):
        module = importlib.import_module(f"{package}.state")
        assert module is not outside
        assert module.counter == 0
        time.sleep(1e-6)
        assert importlib.import_module(f"{package}.state") is module

    run(program, private=[package])
    assert sys.modules[f"{package}.state"] is outside
    assert outside.counter == 1


def test_classes_of_a_private_module_pickle_by_name(package):
    """In the rank that has them."""

    def program(rank):
        module = importlib.import_module(f"{package}.state")
        time.sleep(1e-6)
        thing = module.Thing()
        assert type(pickle.loads(pickle.dumps(thing))) is module.Thing

    run(program, private=[package])


def test_a_function_of_a_private_module_is_run_as_the_ranks_own(package):
    """Spawned by the main program, which has another copy."""
    outside = importlib.import_module(f"{package}.state")
    run(lambda rank: own_copy(outside.count)(), private=[package])
    assert outside.counter == 0


@pytest.fixture(name="installed")
def fixture_installed(package, tmp_path, monkeypatch):
    """Install packages that take something of the private one: at their top, in turn, or late."""
    folder = tmp_path / "site-packages"
    for name, text in {
        "taker": f"from {package}.state import Thing\n",
        "second": "import taker\nfrom taker import Thing as Other\n",
        "late": "kept = []\n",
        "late/part": f"from {package}.state import Thing\n",
        "other": "from collections import Counter\nimport json\n",
        "twice": """
            import importlib, sys
            if not getattr(sys, "is_native", False):
                sys.is_native, python = True, sys.modules.pop("twice")
                native = importlib.import_module("twice")
                sys.modules["twice"] = python
                del sys.is_native
        """,
    }.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] in _INSTALLED]:
        del sys.modules[name]


_INSTALLED = ("taker", "second", "late", "other", "twice")


def test_a_package_that_takes_what_is_one_ranks_is_private_with_it(package, installed):
    """As each rank imports it, and what has taken something of it in turn; others are shared."""
    found, others = [], []

    def program(rank):
        second = importlib.import_module("second")
        own = importlib.import_module(f"{package}.state")
        assert second.Other is sys.modules["taker"].Thing is own.Thing
        found.append((second, second.Other))
        others.append(importlib.import_module("other"))

    run(program, private=[package])
    for one in (0, 1):
        assert len({id(each[one]) for each in found}) == 3
    assert len(set(map(id, others))) == 1
    assert not {"second", "taker"} & sys.modules.keys()
    shared = sys.modules["other"]
    assert type(shared.__loader__) is type(shared.__spec__.loader) is type(shared.json.__loader__)


def test_a_package_may_import_itself_in_its_midst(package, installed):
    """As those do that have an extension of their own name."""

    def program(rank):
        importlib.import_module(f"{package}.state")
        found = importlib.import_module("twice")
        assert found is not found.native

    run(program, private=[package])


def test_a_part_that_takes_what_is_one_ranks_in_a_shared_package_is_told(package, installed):
    """Others have the package already, and would use that rank's part; with the cure."""
    found = []

    def program(rank):
        importlib.import_module(f"{package}.state")
        found.append(importlib.import_module("late.part").Thing)

    importlib.import_module("late")
    text = "rank 0: imported late.part, which all share, with stateful.state.Thing, of which each"
    (finding,) = run(program, private=[package]).findings
    assert text in finding
    assert 'private = ["late"]' in finding
    assert found[0] is found[1], "shared"
    del sys.modules["late.part"]
    found.clear()
    run(program, private=[package, "late"])
    assert found[0] is not found[1]


def test_packages_that_keep_what_belongs_to_a_process_are_private_unasked(tmp_path, monkeypatch):
    """Whether or not the main program has imported them."""
    folder = tmp_path / "site-packages" / "accelerate"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("state = {}\n")
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.delitem(sys.modules, "accelerate", raising=False)
    ranks = {}

    def program(rank):
        state = importlib.import_module("accelerate").state
        time.sleep(1e-6)
        ranks[rank] = state.setdefault("rank", rank)

    run(program)
    assert ranks == {0: 0, 1: 1, 2: 2}
    ranks.clear()
    assert importlib.import_module("accelerate").state == {}
    run(program)
    assert ranks == {0: 0, 1: 1, 2: 2}
    del sys.modules["accelerate"]


def test_a_package_that_all_share_has_each_ranks_own_module(package, tmp_path):
    """As an attribute, which `from package import module` takes: also in a folder without init."""
    (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "leaf.py").write_text("seen = []\n")

    def program(rank):
        for holder, name in ((package, "state"), ("folder", "leaf")):
            if rank:
                time.sleep(1e-6)
            module = importlib.import_module(f"{holder}.{name}")
            module.seen.append(rank)
            for _ in range(2):
                time.sleep(1e-6)
                assert getattr(importlib.import_module(holder), name) is module
            assert module.seen == [rank]

    names = ["stateful.state", "folder.leaf"]
    run(program, private=names)
    assert not hasattr(sys.modules["folder"], "leaf")
    for name in names:
        sys.modules.pop(name, None)
    outside = [importlib.import_module(name) for name in names]
    run(program, private=names)
    assert sys.modules["folder"].leaf is outside[1]
    assert sys.modules[package].state is outside[0]
    assert [module.seen for module in outside] == [[], []]
    for name in ("folder", "folder.leaf"):
        del sys.modules[name]


def test_each_rank_finds_modules_in_folders_without_init_through_its_own_package(tmp_path):
    """Such a package asks the one around it where its folders are, each time."""
    deepest = tmp_path / "around" / "folder" / "deeper"
    deepest.mkdir(parents=True)
    (tmp_path / "around" / "__init__.py").touch()
    (deepest / "state.py").write_text("import os\nRANK = os.environ['RANK']\n")
    script = tmp_path / "program.py"
    script.write_text(
        "import simrank.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "dist.barrier()\n"
        "from around.folder.deeper import state\n"
        "dist.barrier()\n"
        "assert state.RANK == str(dist.get_rank())\n"
    )
    with simrank.Context("hgx_h100", carrier="thread") as ctx:
        run_script(ctx.program, script, [], 2)


def test_a_thread_beside_the_ranks_may_import_while_their_modules_are_looked_at(
    package, monkeypatch
):
    """As one of a library that a session has started."""
    judge, others = PrivateModules.is_private, []

    def meanwhile(self, name):
        if name == "sys":
            others.append(f"imported_meanwhile_{len(others)}")
            sys.modules[others[-1]] = ModuleType(others[-1])
        return judge(self, name)

    def program(rank):
        importlib.import_module(f"{package}.state")

    with monkeypatch.context() as patched:
        patched.setattr(PrivateModules, "is_private", meanwhile)
        run(program, private=["stateful"])
    for name in others:
        sys.modules.pop(name, None)
    assert len(others) > 3


def test_other_modules_are_shared(package):
    """As without the setting."""
    found = []

    def program(rank):
        found.append(importlib.import_module(f"{package}.state"))

    run(program, private=["somebody_else"])
    assert found[0] is found[1] is found[2]


def test_a_module_that_fails_leaves_nothing(package, tmp_path):
    """Neither in the rank nor behind it."""
    (tmp_path / "stateful" / "broken.py").write_text("raise ValueError('no')\n")

    def program(rank):
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                importlib.import_module(f"{package}.broken")
            time.sleep(1e-6)

    run(program, private=[package])
    assert f"{package}.broken" not in sys.modules


LIAR = '''
class Flags:
    """A proxy that answers for another object."""

    __class__ = property(lambda self: type)

    def __getattr__(self, name):
        raise LookupError(name)

    def __eq__(self, other):
        raise LookupError("compared")

    def __bool__(self):
        raise LookupError("asked for a truth value")

    __hash__ = None


FLAGS = Flags()
current = None


def use():
    global current
    current = Flags()
'''


def test_proxies_in_installed_modules_are_left_alone(tmp_path, monkeypatch):
    """Flags of absl, objects of werkzeug, mocks: they answer for others, or raise."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "lying_flags.py").write_text(LIAR)
    script = tmp_path / "program.py"
    script.write_text(
        "import lying_flags, simrank.distributed as dist\n"
        "from lying_flags import FLAGS\n"
        "dist.init_process_group('gloo')\nlying_flags.use()\ndist.barrier()\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    for carrier in ("thread", "greenlet"):
        with simrank.Context(carrier=carrier, strict=True) as context:
            run_script(context.program, str(script), [], 2)
        sys.modules.pop("lying_flags", None)


def test_the_modules_of_a_package_are_those_that_are_there_now(monkeypatch):
    """Imported since, replaced under the same name, or gone; nothing that is no module."""
    assert modules_of("package_of_this_test") == {}
    first, second = ModuleType("package_of_this_test"), ModuleType("package_of_this_test.part")
    monkeypatch.setitem(sys.modules, "package_of_this_test", first)
    monkeypatch.setitem(sys.modules, "package_of_this_testing", ModuleType("another"))
    monkeypatch.setitem(sys.modules, "package_of_this_test.none", None)
    assert modules_of("package_of_this_test") == {"package_of_this_test": first}
    monkeypatch.setitem(sys.modules, "package_of_this_test.part", second)
    monkeypatch.setitem(sys.modules, "package_of_this_test", second)
    assert [*modules_of("package_of_this_test").values()] == [second, second]
    monkeypatch.delitem(sys.modules, "package_of_this_test.part")
    assert modules_of("package_of_this_test") == {"package_of_this_test": second}
