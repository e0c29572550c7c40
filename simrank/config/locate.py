"""Locations of configurations: built-in ones by name, the user's own by path.

A word that names a built-in file wins over a file of the same name in the current folder; write
`./name` for the latter.
"""

from pathlib import Path

from simrank.config.files import configs_dir
from simrank.config.quantity import nearest
from simrank.config.yaml_source import KeyPath, Source
from simrank.errors import ConfigError, ConfigProblem

_SUFFIXES = {
    "clusters": ".yaml",
    "bench": ".yaml",
    "calibrations": ".json",
    "measured": ".csv",
    "gemm": ".csv",
    "models": ".yaml",
}
_MAX_NEAR = 3  # Names that a message suggests.
_FILES = (".yaml", ".yml", ".csv", ".xml")


def builtin_names(kind: str) -> list[str]:
    """Return the names of the built-in files of a kind.

    Args:
        kind: "clusters", "bench", "calibrations", "measured", "gemm" or "models".
    """
    suffix = _SUFFIXES[kind]
    return sorted(path.stem for path in (configs_dir() / kind).glob(f"*{suffix}"))


def builtin_clusters() -> list[str]:
    """Return the names of the built-in clusters."""
    return builtin_names("clusters")


def is_file(path: Path) -> bool:
    """Return whether there is such a file or pipe; names that are too long for a file are none."""
    try:
        return path.is_file() or path.is_fifo()
    except (OSError, ValueError):
        return False


def located(kind: str, word: str, source: Source, key_path: KeyPath) -> Path:
    """Return the file of a name in a configuration, beside it or built in.

    Raises:
        ConfigError: It is missing, with the line of the word.
    """
    base = source.path.parent if source.path is not None else None
    try:
        path = locate(kind, word, base)
    except ConfigError as error:
        first = error.problems[0]
        got = f"the unknown name {first.got}"
        raise ConfigError(source.problem(key_path, first.expected, got, first.to_fix)) from None
    if not is_file(path):
        raise ConfigError(source.problem(key_path, "a readable file", f"{path}, no file"))
    return path


def locate(kind: str, word: str, base: Path | None = None) -> Path:
    """Return the file of a name or path.

    Args:
        kind: "clusters", "bench", "calibrations", "measured", "gemm" or "models".
        word: A built-in name, or the path of a file.
        base: Folder that relative paths start from, or None for the current one.

    Raises:
        ConfigError: The word is neither; the built-in names are listed.
    """
    suffix = _SUFFIXES[kind]
    names = builtin_names(kind)
    if kind == "calibrations":
        names = ["auto", "none", *names]
    elif word in names:
        return configs_dir() / kind / f"{word}{suffix}"
    path = Path(word) if base is None else base / word
    looks_like_path = "/" in word or "\\" in word or Path(word).suffix in _FILES
    if looks_like_path or is_file(path):
        return path
    containing = [name for name in names if word.lower() in name]
    near = nearest(word, containing or names, _MAX_NEAR)
    expected = f"a file or one of {', '.join(dict.fromkeys((*near, *names)))}"
    to_fix = f"write {' or '.join(f'`{name}`' for name in near)}" if near else None
    facts = expected, f"`{word}`", to_fix
    raise ConfigError(ConfigProblem(word or "''", None, "", *facts))
