"""Which code a benchmark of a program would run, found without running it."""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from simrank.config.sweep import SweepConfig
from simrank.errors import ConfigError


def describe_program(config: SweepConfig) -> str:
    """Return what running a benchmark imports: `mlp of step.py in /home/me`.

    Modules are looked for beside the file, in the current folder, and where Python looks.

    Raises:
        ConfigError: There is no such module.
    """
    module, _, function = config.program.rpartition(".")
    beside = [] if config.folder is None else [str(config.folder)]
    spec = _spec(module, [*beside, str(Path.cwd()), *sys.path])
    if spec is None:
        expected = "the name of a function with its module, such as my_steps.mlp"
        got = f"{config.program} (no module {module})"
        raise ConfigError(config.source.problem(("program",), expected, got))
    if spec.origin is None or not Path(spec.origin).is_file():
        return f"{function} of {module}"
    origin = Path(spec.origin)
    return f"{function} of {origin.name} in {origin.parent}"


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
