"""State that ranks write into installed packages: private, a second start, or an error."""

import os
import subprocess
import sys

import pytest
import torch.distributed as dist

import simrank
from simrank.cli import main
from simrank.errors import SimrankError

FLAGS = """
current = None


class Flag:
    def __init__(self, value):
        self.value = self.first = value


class Flags:
    num_reads = 0

    def __init__(self):
        self.__dict__["__held"] = {}

    def define(self, name, value):
        if vars(self)["__held"].setdefault(name, Flag(value)).first != value:
            raise ValueError(f"{name} is already defined")

    def __getattr__(self, name):
        Flags.num_reads += 1
        return vars(self)["__held"][name].value

    def __setattr__(self, name, value):
        vars(self)["__held"][name].value = value


flags = Flags()
"""
SCRIPT = """
import sys

import sharedlib
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
"""
WRITES = """
dist.barrier()
sharedlib.flags.define("shard", {first})
sharedlib.flags.shard = {then}
dist.barrier()
assert sharedlib.flags.shard < 2
"""
SET = "ranks 0-1: set sharedlib.flags.__held['shard'].value, which they share"
REFUSED = "rank 1: sharedlib refused, as another rank had done the same in it"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with flags; return a function that installs more."""

    def install(name, text):
        file = tmp_path / "site-packages" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    install("sharedlib", FLAGS)
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    monkeypatch.chdir(tmp_path)
    yield install
    for name in list(sys.modules):
        if name.partition(".")[0] in ("sharedlib", "emptytop", "needed", "beside"):
            del sys.modules[name]


@pytest.fixture
def run_script(package, tmp_path, capfd):
    """Run a script on two ranks, without a second start; return the status and stderr."""

    def run_two(*options, text=WRITES, first="-1", then="rank"):
        text = text.format(first=first, then=then) if text is WRITES else text
        (tmp_path / "script.py").write_text(SCRIPT + text)
        with pytest.raises(SystemExit) as stop:
            main(["run", "--nproc-per-node", "2", *options, "script.py"])
        return stop.value.code or 0, capfd.readouterr().err

    return run_two


@pytest.fixture
def starts(run_script, monkeypatch):
    """Run a script as a process does; return the command lines of further starts."""

    def started(*options, **text):
        found = []
        words = ["run", "--nproc-per-node", "2", *options, "script.py"]
        monkeypatch.setattr(sys, "argv", ["simrank", *words])
        monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "simrank", *words])
        monkeypatch.setattr(os, "execve", lambda *given: found.append(given))
        _, err = run_script(*options, **text)
        return found, err

    return started


# ---- conflicts ----


def test_different_values_fail_a_run(run_script):
    """The place, the ranks, the line and the cure; counters of the package do not matter."""
    status, err = run_script()
    assert status == 1
    assert SET in err
    assert "set before at script.py:14" in err
    assert "--private sharedlib" in err


@pytest.mark.parametrize(("value", "num_starts"), [("rank", 1), ("7", 0)])
def test_functions_of_ranks_in_a_package_with_an_extension(starts, package, value, num_starts):
    """They conflict if they read different values, and do not if one code reads equal ones."""
    package("beside/__init__", "from beside import fast\nclass Loader: kinds = {}")
    package("beside/fast", "__file__ = 'fast.so'")
    text = f"import beside\nvalue = {value}\nbeside.Loader.kinds['shard'] = lambda: value\n"
    found, err = starts(text=text + "dist.barrier()\n")
    assert len(found) == num_starts
    assert ("set beside.Loader.kinds['shard'], which they share" in err) == bool(num_starts)


def test_without_checks_they_are_a_finding(run_script):
    """The lenient level."""
    status, err = run_script("--checks", "off")
    assert status == 0
    assert SET in err


def test_the_cure_is_named_where_ranks_exit_with_a_code(run_script):
    """A program that finds the wrong value may end by itself."""
    status, err = run_script(then="rank\ndist.barrier()\nsys.exit(2)")
    assert status != 0
    assert SET in err
    assert "--private sharedlib" in err


@pytest.mark.parametrize("options", [{"then": "1"}, {"then": "sharedlib.flags.shard"}])
def test_equal_writes_are_none(starts, options):
    """Each rank writes what the other has written."""
    assert starts(**options)[0] == []


def test_a_package_that_refuses_a_second_definition_is_named(run_script):
    """Its error has a note with the cure, and with it there is no error."""
    status, err = run_script(first="rank")
    assert status == 1
    assert REFUSED in err
    assert "--private sharedlib" in err
    status, err = run_script("--private", "sharedlib", first="rank")
    assert (status, "sharedlib" in err) == (0, False)


def work(rank):
    """Write to a package, in a later turn than its import."""
    import sharedlib

    dist.init_process_group("gloo")
    dist.barrier()
    sharedlib.flags.define("shard", -1)
    sharedlib.flags.shard = rank
    dist.barrier()


@pytest.mark.parametrize("checks", ["default", "all"])
def test_different_values_fail_spawned_ranks(package, checks):
    """They have no front door that could start again."""
    with (
        pytest.raises(SimrankError, match=r"set sharedlib\.flags.*shard.*\n.*--private sharedlib"),
        simrank.Context(checks=checks) as ctx,
    ):
        ctx.multiprocessing.spawn(work, nprocs=2)


# ---- a second start ----


def test_the_run_starts_again_with_the_package_private(starts):
    """The command is the same, with an option more; two lines say why."""
    ((program, command, environment),), err = starts("--seed", "3")
    assert program == sys.executable
    assert command[1:6] == ["-m", "simrank", "run", "--private", "sharedlib"]
    assert command[6:] == ["--nproc-per-node", "2", "--seed", "3", "script.py"]
    assert environment["SIMRANK_STARTS"] == "1"
    first, second = err.splitlines()[:2]
    assert SET in first
    assert second.startswith("simrank: the run starts again with sharedlib private")
    assert "--private sharedlib" in second


def test_packages_that_are_private_already_stay_so(starts, tmp_path):
    """Those of the project, too, which an option would replace."""
    (tmp_path / "pyproject.toml").write_text('[tool.simrank]\nprivate = ["other"]\n')
    ((_, command, _),), _ = starts()
    assert command[4:8] == ["--private", "other", "--private", "sharedlib"]


def test_no_second_run_is_one_start(starts):
    """The conflict fails the run."""
    found, err = starts("--no-second-run")
    assert found == []
    assert SET in err


def test_starts_are_bounded(starts, monkeypatch):
    """However many packages there are."""
    monkeypatch.setenv("SIMRANK_STARTS", "10")
    assert starts()[0] == []


CAUGHT = """
dist.barrier()
try:
    sharedlib.flags.define("lr", rank)
except ValueError as error:
    {handler}
dist.barrier()
"""


@pytest.mark.parametrize("handler", ["print(error)", "dist.barrier()"])
def test_a_refusal_that_the_program_catches_starts_again(starts, handler):
    """It prints the exception, or others have their turns meanwhile."""
    other = "" if handler.startswith("print") else "\nif rank == 0: dist.barrier()"
    found, err = starts(text=CAUGHT.format(handler=handler) + other)
    assert len(found) == 1, err
    assert REFUSED in err


LOCAL = """
dist.barrier()
own = sharedlib.Flags()
own.define("lr", 1)
try:
    own.define("lr", rank)
except ValueError as error:
    print(error)
"""
UNSHARED = """
dist.barrier()
try:
    raise ValueError("it is already there")
except ValueError as error:
    print(error)
"""
FILES = """
import os, shutil
dist.barrier()
try:
    os.mkdir("folder")
except FileExistsError as error:
    print(error)
"""


@pytest.mark.parametrize("text", [LOCAL, UNSHARED, FILES])
def test_refusals_of_what_is_the_ranks_own_are_none(starts, text):
    """An object of the rank, the program's own error, a file that another rank has made."""
    assert starts(text=text)[0] == []


SINGLETON = """
dist.barrier()
if rank == 0:
    sharedlib.current = sharedlib.Flags()
dist.barrier()
"""


def test_an_object_of_another_rank_starts_again_where_it_is_read(starts):
    """A process would read None."""
    found, err = starts(text=SINGLETON + "assert sharedlib.current is not rank")
    assert len(found) == 1, err
    assert "rank 1: read sharedlib.current, which rank 0 has set" in err


def test_an_object_that_its_rank_alone_reads_is_none(starts):
    """The usual use of a tracker; afterwards the module is as before."""
    text = "if rank == 0:\n    assert sharedlib.current\nassert not hasattr(sharedlib, 'none')"
    assert starts(text=SINGLETON + text)[0] == []
    assert type(sys.modules["sharedlib"]) is type(sys)


@pytest.mark.slow
def test_starts_converge(package, tmp_path):
    """Two packages, one after the other, in a process of its own."""
    package("needed", FLAGS)
    both = "\ndist.barrier()\nimport needed" + WRITES + WRITES.replace("sharedlib", "needed")
    last = "print(sharedlib.flags.shard, needed.flags.shard, flush=True)\n"
    (tmp_path / "script.py").write_text(SCRIPT + both.format(first=-1, then="rank") + last)
    folders = [str(tmp_path / "site-packages"), os.environ.get("PYTHONPATH", "")]
    ended = subprocess.run(
        [sys.executable, "-m", "simrank", "run", "--nproc-per-node", "2", "script.py"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ended.stdout.splitlines()[-2:] == ["[rank0]: 0 0", "[rank1]: 1 1"]
    assert ended.stderr.count("the run starts again") == 2


# ---- private without a second start ----


EARLY = """
sharedlib.flags.define("shard", rank)
dist.barrier()
assert sharedlib.flags.shard == rank
"""


def test_a_package_that_its_importer_changes_at_once_is_private(starts):
    """Other ranks execute a copy of their own, and nothing is reported."""
    found, err = starts(text=EARLY)
    assert found == []
    assert "sharedlib" not in err


def test_what_cannot_be_executed_twice_is_shared_as_before(package, starts):
    """It registers with an extension, say."""
    package("sharedlib", "open('loaded', 'x').close()\n" + FLAGS)
    found, err = starts(text=EARLY.replace("rank", "1"))
    assert found == []
    assert "Error" not in err


def test_a_package_joins_by_any_module_that_imports_a_private_one(package, run_script, tmp_path):
    """Its top module is empty, and no other rank has met it."""
    package("emptytop/__init__", "")
    package("emptytop/inner", "import sharedlib\nflags = sharedlib.flags")
    then = "rank\nfrom emptytop.inner import flags\nassert flags is sharedlib.flags"
    assert run_script("--private", "sharedlib", then=then)[0] == 0
