"""Run other projects' suites and programs as they are, on simulated ranks.

`python tests/check.py foreign` runs all, `... foreign NAME` one. Each folder of `tests/foreign` is
a recipe: `recipe.yaml` says what is installed and run, `tests.txt` which tests, written down before
the first run, `expected.tsv` what each does on real processes and on simulated ranks, and why.
`shims` holds modules that the suite needs, each with its reason. A test that does otherwise than
expected fails the check; `--write` keeps what was found, `--processes` runs on real processes.

A recipe has an environment of its own beside this one's packages (torch among them), in
`.venv-foreign` or `$SIMRANK_FOREIGN`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import sysconfig
import venv
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
RECIPES = ROOT / "tests" / "foreign"
HOME = Path(os.environ.get("SIMRANK_FOREIGN", ROOT / ".venv-foreign"))
PLUGINS = RECIPES / "plugins"
OUTCOMES = "SIMRANK_FOREIGN_OUTCOMES"  # A file: the plugin `outcomes` writes a line per test.
_TABLE = "test\tprocesses\tsimrank\tcause"
_UNTRIED = "-"
_COUNTED = ("passed", "gpu")  # On processes; or it needs a GPU for nothing but being there.
_HARMLESS = (
    "returned without destroy_process_group",
    "not looked for: ",
    "devices: simulated",
)  # Notes.
# Programs of packages run with the Python of the recipe's environment.
_PYTHONS = {"python": [], "torchrun": ["-m", "torch.distributed.run"]}
_LAST_OF_SUMMARY = "constants of the cluster:"


@dataclass
class Recipe:
    """A folder of `tests/foreign`.

    Attributes:
        name: Of the folder.
        packages: Requirements, pinned.
        simulated: The command line on simulated ranks; `{tests}` are a file's tests or a row's
            arguments, `{here}` the recipe's folder, `{folder}` that where commands run.
        processes: That on real processes; None: there is none.
        source: `repository` and `commit` of the suite; None: the packages are all.
        folder: Where commands run, in the source.
        installs_source: Whether the source itself is installed, without what it depends on.
        environment: Variables.
        rows: Whether tests are rows of a name and arguments, each a command; else pytest's.
        time_limit_s: Seconds for a file, or a row.
    """

    name: str
    packages: list[str]
    simulated: str
    processes: str | None = None
    source: dict[str, str] | None = None
    folder: str = "."
    installs_source: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    rows: bool = False
    time_limit_s: float = 300.0

    @property
    def here(self) -> Path:
        """The folder."""
        return RECIPES / self.name

    def commands(self) -> dict[str, list[str]]:
        """Return the arguments of each command, by the file or row that it runs."""
        path = self.here / "tests.txt"
        if not path.exists():
            return {self.name: []}
        too_large = {test for test, row in self.expected().items() if _is_too_large(row)}
        lines = [line for line in path.read_text().splitlines() if line and line[0] != "#"]
        lines = [line for line in lines if line not in too_large]
        if self.rows:
            named = (line.partition("\t") for line in lines)
            return {name: shlex.split(arguments) for name, _, arguments in named}
        found: dict[str, list[str]] = {}
        for line in lines:
            found.setdefault(line.partition("::")[0], []).append(line)
        return found

    def expected(self) -> dict[str, list[str]]:
        """Return the columns of each test: on processes, on simulated ranks, and the cause."""
        path = self.here / "expected.tsv"
        if not path.exists():
            return {self.name: [_UNTRIED, "passed", ""]}
        rows = [line.split("\t") for line in path.read_text().splitlines()[1:]]
        return {name: [*columns, ""][:3] for name, *columns in rows}


def _is_too_large(row: list[str]) -> bool:
    """Return whether only a GPU can run a test: it is not tried, and counts as no pass."""
    return row[1] == _UNTRIED and row[2].startswith("gpu:")


class CannotRunError(Exception):
    """A recipe's packages or source cannot be had; the text is the reason."""


def main(arguments: list[str]) -> int:
    """Run recipes; return 1 if a test does otherwise than expected, 2 for a wrong name."""
    parser = argparse.ArgumentParser(prog="python tests/check.py foreign")
    names = sorted(path.parent.name for path in RECIPES.glob("*/recipe.yaml"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--processes", action="store_true", help="run on real processes instead")
    parser.add_argument("--write", action="store_true", help="keep what is found as expected")
    parser.add_argument("--only", default="", help="run files and rows alone whose name has this")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.names if name not in names]
    if unknown:
        print(f"no recipe is called {unknown[0]!r}; choices: {', '.join(names)}")
        return 2
    try:
        torch = version("torch")
    except PackageNotFoundError:
        print("skipped: torch is not installed in this environment")
        return 0
    failed = []
    for name in asked.names or names:
        recipe = recipe_of(name)
        try:
            python = _environment(recipe, torch)
            folder = _source(recipe, python)
        except CannotRunError as error:
            print(f"{name}: skipped: {error}", flush=True)
            continue
        if not _run(recipe, python, folder, asked):
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all as expected", flush=True)
    return bool(failed)


def recipe_of(name: str) -> Recipe:
    """Read a recipe."""
    return Recipe(name, **yaml.safe_load((RECIPES / name / "recipe.yaml").read_text()))


# ---- what a recipe needs ----


def _environment(recipe: Recipe, torch: str) -> Path:
    """Return the Python of a recipe's environment, with its packages."""
    folder = HOME / recipe.name
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        names = f"{sys.version_info.major}.{sys.version_info.minor}"
        packages = folder / "lib" / f"python{names}" / "site-packages"
        (packages / "base.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n{ROOT}\n")
    if recipe.packages:
        constraints = folder / "constraints.txt"
        constraints.write_text(f"torch=={torch}\n")
        _tool(python, "-m", "pip", "install", "-q", "-c", constraints, *recipe.packages)
    return python


def _source(recipe: Recipe, python: Path) -> Path:
    """Return the folder where a recipe's commands run: its source, at the commit."""
    if recipe.source is None:
        return recipe.here
    folder, commit = HOME / recipe.name / "source", recipe.source["commit"]
    if not folder.exists():
        _tool("git", "init", "-q", folder)
        _tool(
            "git", "-C", folder, "fetch", "-q", "--depth", "1", recipe.source["repository"], commit
        )
    _tool("git", "-C", folder, "-c", "advice.detachedHead=false", "checkout", "-q", "-f", commit)
    if recipe.installs_source:
        options = ("-q", "--no-build-isolation", "--no-deps", "-e")
        _tool(python, "-m", "pip", "install", *options, folder, **recipe.environment)
    return folder / recipe.folder


def _tool(*command: str | Path, **environment: str) -> None:
    found = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False,
        env=os.environ | environment,
    )  # fmt: skip
    if found.returncode:
        lines = [line for line in found.stderr.splitlines() if line.strip()]
        raise CannotRunError("; ".join(lines[-2:]) or f"{command[0]} failed")


# ---- a run, and what is expected of it ----


def _run(recipe: Recipe, python: Path, folder: Path, asked: argparse.Namespace) -> bool:
    """Run a recipe, and print its table; return whether all is as expected."""
    line = recipe.processes if asked.processes else recipe.simulated
    if line is None:
        print(f"{recipe.name}: skipped: it has no command for real processes", flush=True)
        return True
    expected, found, cpu_s = recipe.expected(), {}, 0.0
    for name, arguments in recipe.commands().items():
        if asked.only in name:
            outcomes, used_s = _outcomes(recipe, python, folder, line, (name, arguments))
            found |= outcomes
            cpu_s += used_s
            counts = ", ".join(f"{num} {each}" for each, num in Counter(outcomes.values()).items())
            print(f"  {name}: {counts or 'nothing ran'}; {used_s:.0f} CPU s", flush=True)
    column = 0 if asked.processes else 1
    others = {
        test: (expected[test][column] if test in expected else "nothing", outcome)
        for test, outcome in found.items()
        if test not in expected or expected[test][column] not in (outcome, outcome.split(":")[0])
    }
    missing = [] if asked.only else missing_of(expected, found, column)
    for test, (wanted, outcome) in others.items():
        print(f"  {test}: expected {wanted}, found {outcome}")
    for test in missing:
        print(f"  {test}: did not run")
    for test, outcome in found.items():
        expected.setdefault(test, [_UNTRIED, _UNTRIED, ""])[column] = outcome.split(":")[0]
    print_share(recipe.name, expected, cpu_s)
    rows = ["\t".join([test, *columns]) for test, columns in expected.items()]
    table = "\n".join([_TABLE, *rows]) + "\n"
    (HOME / recipe.name / "table.tsv").write_text(table)
    if asked.write:
        (recipe.here / "expected.tsv").write_text(table)
    return not others and not missing


def missing_of(expected: dict[str, list[str]], found: dict[str, str], column: int) -> list[str]:
    """Return the tests that did not run, without those that the table has as untried."""
    return [test for test, row in expected.items() if test not in found and row[column] != _UNTRIED]


def print_share(name: str, table: dict[str, list[str]], cpu_s: float) -> None:
    """Print how many of the tests that count pass, and why the others do not."""
    counted = {test: row for test, row in table.items() if row[0] in _COUNTED or len(table) == 1}
    passed = sum(row[1] == "passed" for row in counted.values())
    causes = Counter(
        row[2].partition(":")[0] or "not known" for row in counted.values() if row[1] != "passed"
    )
    why = "".join(f"; {cause}: {num}" for cause, num in causes.most_common())
    print(f"{name}: {passed} of {len(counted)} tests pass{why}; {cpu_s:.0f} CPU s", flush=True)


def _outcomes(
    recipe: Recipe, python: Path, folder: Path, line: str, what: tuple[str, list[str]]
) -> tuple[dict[str, str], float]:
    """Run a file or a row; return the outcome of each test, and the processor's seconds."""
    name, arguments = what
    words: list[str] = []
    for word in shlex.split(line):
        parts = arguments if word == "{tests}" else [word]
        given = [part.replace("{here}", str(recipe.here)) for part in parts]
        words += [part.replace("{folder}", str(folder)) for part in given]
    if "pytest" in words:
        at = words.index("pytest") + 1
        words[at:at] = ["-p", "outcomes"]
    if words[0] in _PYTHONS:
        words[:1] = [str(python), *_PYTHONS[words[0]]]
    notes = HOME / recipe.name / "outcomes"
    notes.unlink(missing_ok=True)
    paths = [recipe.here / "shims", PLUGINS, folder]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | recipe.environment
    environment |= {
        OUTCOMES: str(notes),
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
    }
    status, text, cpu_s = _limited(words, folder, environment, recipe.time_limit_s)
    if " -m pytest" in f" {line}":
        return by_test(notes, arguments, status, text), cpu_s
    problem = None if status else findings_in(text)
    if problem is None and not status:
        return {name: "passed"}, cpu_s
    last = problem or next((each for each in reversed(text.splitlines()) if each.strip()), "")
    return {name: f"failed: status {status}: {last.strip()[:300]}"}, cpu_s


def _limited(
    words: list[str], folder: Path, environment: dict[str, str], limit_s: float
) -> tuple[int, str, float]:
    """Run a command with a time limit; return its status, its errors, and its CPU seconds."""
    before = os.times()
    with subprocess.Popen(
        words, cwd=folder, env=environment, text=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, start_new_session=True, errors="replace",
    ) as process:  # fmt: skip
        try:
            _, text = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            _, text = process.communicate()
            text += f"\nended after {limit_s:g} s"
    after = os.times()
    used_s = after.children_user + after.children_system
    return process.returncode, text, used_s - before.children_user - before.children_system


def by_test(notes: Path, asked: list[str], status: int, text: str) -> dict[str, str]:
    """Return the outcomes of a run of pytest: on all ranks passed, or the worst."""
    found: dict[str, str] = {}
    for line in notes.read_text().splitlines() if notes.exists() else ():
        test, _, outcome = line.partition("\t")
        if found.get(test, "passed").partition(":")[0] in ("passed", "skipped"):
            found[test] = outcome
    lines = [line for line in text.splitlines() if line.strip()]
    reason = f"failed: not run: status {status}: {lines[-1].strip()[:300] if lines else ''}"
    for test in asked:
        if test not in found and not any(each.startswith(f"{test}::") for each in found):
            found[test] = reason
    return found


def findings_in(text: str) -> str | None:
    """Return the findings that `simrank run` printed behind its summary, or None."""
    lines = text.partition(_LAST_OF_SUMMARY)[2].splitlines()[1:]
    found = [line for line in lines if not any(words in line for words in _HARMLESS)]
    return "findings:\n" + "\n".join(found) if found else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
