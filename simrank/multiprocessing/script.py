"""Run a script or a module once per rank, as torchrun does: own globals and `sys.argv`."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrank.engine.callsite import note_program
from simrank.errors import ConfigError, ConfigProblem, SimrankError
from simrank.isolation import libraries, private_importers
from simrank.isolation.carrier_choice import find, will_import
from simrank.isolation.extension import OWN_MODULES, SCRIPT_USES_LIBRARY
from simrank.multiprocessing.spawn import spawn_in
from simrank.multiprocessing.tracebacks import users_traceback
from simrank.ranks import require_program
from simrank.ranks.program_modules import is_programs_own

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

    from simrank.ranks import Program


@dataclass(frozen=True)
class Script:
    """A program, read and compiled.

    Attributes:
        code: Of the file.
        path: What `sys.argv[0]` is.
        spec: Where a module was found; None for a file.
    """

    code: CodeType
    path: str
    spec: ModuleSpec | None = None


def run_script(parent: Program, path: str | Path, args: Sequence[str], nprocs: int) -> None:
    """Run the program in a file on `nprocs` ranks of the parent's Context.

    Each rank executes the file as `__main__` in a namespace of its own; what it imports is shared.

    Args:
        parent: The program that starts it.
        path: A Python file.
        args: Its command line arguments.
        nprocs: Number of ranks.

    Raises:
        ConfigError: There is no such file.
        SimrankError: It is no Python; the text is Python's own.
        SpawnException: A rank raised; see `spawn` for the others.
    """
    with program_imports(Path(path).absolute().parent):  # As Python does for a script.
        _run(parent, load_script(path), args, nprocs)


def run_module(parent: Program, name: str, args: Sequence[str], nprocs: int) -> None:
    """Run a module as `python -m` does, on `nprocs` ranks; see `run_script`.

    Its packages are imported on the ranks, so that they find a rank's environment.
    """
    with program_imports(Path.cwd()):
        _run(parent, _load_module(name), args, nprocs)


def run_calls(
    parent: Program, path: str | Path, call: Callable[[int, Script], object], nprocs: int
) -> None:
    """Run `call(rank, script)` on ranks that execute the modules beside a file for themselves.

    Args:
        parent: The program that starts it.
        path: The file, which is read and not run.
        call: What each rank does with it.
        nprocs: Number of ranks.

    Raises:
        ConfigError, SimrankError, SpawnException: As `run_script`.
    """
    with program_imports(Path(path).absolute().parent):
        script = load_script(path)
        _prepare(parent, script)
        spawn_in(parent, call, (script,), nprocs, share_args=True, is_users=False)


def _run(parent: Program, script: Script, args: Sequence[str], nprocs: int) -> None:
    _prepare(parent, script)
    spawn_in(parent, _run_once, (script, [script.path, *args]), nprocs, share_args=True)


def _prepare(parent: Program, script: Script) -> None:
    """Give ranks their own modules, and import registered libraries before they start."""
    parent.local[OWN_MODULES] = True
    installed = [name for name in libraries.names() if find(name) is not None]
    found = will_import(script.code, installed)
    parent.local[SCRIPT_USES_LIBRARY] = bool(found)
    for library in found:
        importlib.import_module(library)  # Before the ranks start, which threads carry then.


@contextmanager
def program_imports(*folders: Path) -> Iterator[None]:
    """Import the program's own modules from folders first, and forget them after the block.

    Modules of the same names that were imported from elsewhere (another program's, in the same
    process) are set aside in the meantime.
    """
    path, before = list(sys.path), dict(sys.modules)
    sys.path[:0] = [str(folder) for folder in folders]
    importlib.invalidate_caches()  # Files may be younger than what is known of their folders.
    for name in _from_elsewhere(folders):
        del sys.modules[name]
    try:
        yield
    finally:
        sys.path[:] = path
        for name, module in sys.modules.copy().items():
            if before.get(name) is not module and is_programs_own(module):
                del sys.modules[name]
        sys.modules.update((name, before[name]) for name in before.keys() - sys.modules.keys())


def _from_elsewhere(folders: Sequence[Path]) -> list[str]:
    """Return the imported modules of the program that another folder's files would hide."""
    home: dict[str, str] = {}
    for folder in reversed(folders):
        home |= dict.fromkeys(_names_in(folder), os.path.abspath(folder))
    names = []
    for name, module in sys.modules.copy().items():
        top = name.partition(".")[0]
        if top in home and name != "__main__" and is_programs_own(module):
            file = os.path.abspath(module.__file__ or "")
            own = os.path.join(home[top], top)
            if file != f"{own}.py" and not file.startswith(f"{own}{os.sep}"):
                names.append(name)
    return names


def _names_in(folder: Path) -> set[str]:
    """Return the importable names of a folder; none if it cannot be read."""
    try:
        entries = os.listdir(folder)
    except OSError:
        return set()
    return {entry.removesuffix(".py") for entry in entries if "." not in entry.removesuffix(".py")}


def import_program(name: str) -> ModuleType:
    """Import a module of the program's own.

    Raises:
        ImportError: It is missing or unknown.
        SimrankError: It raised; the text is its error, then the frames that Python shows.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise ImportError(f"'{name}' is no name of a module")
    try:
        return importlib.import_module(name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise
        raise SimrankError(users_traceback(error, report_first=True)) from None


def names_of(path: str | Path) -> dict[str, Any]:
    """Return the names that a file defines, run as a module.

    Raises:
        ConfigError: There is no such file.
        SimrankError: It raised, or is no Python; the text is Python's own.
    """
    names: dict[str, Any] = {"__name__": Path(path).stem, "__file__": str(path)}
    try:
        exec(load_script(path).code, names)  # noqa: S102 - the user's own file
    except SimrankError:
        raise
    except Exception as error:  # noqa: BLE001 - the file may raise anything
        raise SimrankError(users_traceback(error, report_first=True)) from None
    return names


def load_script(path: str | Path) -> Script:
    """Read and compile a file.

    Raises:
        ConfigError: There is no such file.
        SimrankError: It is no Python; the text is Python's own.
    """
    file = Path(path)
    try:
        source = file.read_bytes()
    except OSError as error:
        raise _missing(file, error.strerror or str(error)) from None
    try:
        return Script(compile(source, str(file), "exec", dont_inherit=True), str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _not_python(error) from None


def _not_python(error: Exception) -> SimrankError:
    """Return the compiler's error, as Python shows it."""
    return SimrankError("".join(traceback.format_exception_only(error)).rstrip())


def _missing(file: Path, reason: str) -> ConfigError:
    """Return the error of an unreadable program, with the nearest existing name."""
    to_fix = None
    near = get_close_matches(file.name, [path.name for path in file.parent.glob("*.py")], n=1)
    if file.is_dir():
        to_fix = "name a file in it, or run it as a module: `-m`"
    elif near:
        to_fix = f"write `{file.parent / near[0]}`"
    elif not file.suffix and find(str(file)) is not None:
        to_fix = f"write `-m {file}`"
    got = f"{file} ({reason})"
    return ConfigError(ConfigProblem("command line", None, "program", "a Python file", got, to_fix))


def _load_module(name: str) -> Script:
    spec = find(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find(f"{name}.__main__")
    loader: Any = None if spec is None else spec.loader
    if spec is None or not hasattr(loader, "get_code"):
        to_fix = "leave `-m` out to run a file" if name.endswith(".py") else None
        expected = "a module, or a package with a __main__"
        raise ConfigError(ConfigProblem("command line", None, "-m", expected, name, to_fix))
    try:
        return Script(loader.get_code(spec.name), spec.origin or name, spec)
    except SyntaxError as error:
        raise _not_python(error) from None


def _run_once(_: int, script: Script, argv: list[str]) -> None:
    execute(script, argv)


def execute(script: Script, argv: list[str]) -> None:
    """Run a script on a rank as `__main__`, with `argv` as its command line."""
    program = require_program("a script")
    program.local["argv"] = list(argv)
    note_program(script.code)
    names: dict[str, Any] = {"__file__": argv[0], "__builtins__": __builtins__}
    if script.spec is not None:
        package = script.spec.parent or ""
        if package:
            importlib.import_module(package)
        names |= {"__spec__": script.spec, "__package__": package}
    private_importers.execute(program, private_importers.Main(script.code, names))
