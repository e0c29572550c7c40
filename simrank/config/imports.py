"""The code that a benchmark of a program would run, found without running it."""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from simrank.config.sweep import SweepConfig
from simrank.errors import ConfigError


def describe_program(config: SweepConfig) -> str:
    """Return the text of a benchmark's program: `mlp of step.py in /home/me`.

    Modules are looked for beside the file, in the current folder, and where Python looks.

    Raises:
        ConfigError: There is no such module.
    """
    function = config.program.rpartition(".")[2]
    file = program_file(config)
    if file is None:
        return f"{function} of {config.program.rpartition('.')[0]}"
    return f"{function} of {file.name} in {file.parent}"


def program_file(config: SweepConfig) -> Path | None:
    """Return the Python file that a benchmark imports first, or None.

    Raises:
        ConfigError: There is no such module.
    """
    module = config.program.rpartition(".")[0]
    beside = [] if config.folder is None else [str(config.folder)]
    spec = _spec(module, [*beside, str(Path.cwd()), *sys.path])
    if spec is None:
        expected = "the name of a function with its module, such as my_steps.mlp"
        got = f"{config.program} (no module {module})"
        raise ConfigError(config.source.problem(("program",), expected, got))
    return Path(spec.origin) if spec.origin and Path(spec.origin).is_file() else None


def _spec(module: str, folders: list[str]) -> ModuleSpec | None:
    """Find a module: packages around it are looked into, not imported."""
    if module in sys.builtin_module_names:
        return ModuleSpec(module, None)
    spec = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, folders)
        if spec is None:
            return None
        folders = list(spec.submodule_search_locations or [])
    return spec
