"""The public Python API: names, parameters and defaults, frozen in tests/api.txt.

A difference is a promise that changes: list it in CHANGELOG.md, and write the file again with
`SIMRANK_UPDATE=1 pytest tests/test_api.py`.
"""

import inspect
import os
from enum import Enum
from importlib import import_module
from pathlib import Path

import simrank

FROZEN = Path(__file__).with_name("api.txt")
# Modules whose `__all__` is public; torch's names in `simrank` have a test of their own.
MODULES = (
    "simrank", "simrank.bench", "simrank.collectives", "simrank.distributed",
    "simrank.distributed.symmetric_memory", "simrank.errors", "simrank.explore",
    "simrank.multiprocessing", "simrank.tp", "simrank.trace", "simrank.validate",
)  # fmt: skip


def signature(function):
    """Return the parameters of a function with their defaults, without annotations."""
    words, is_starred = [], False
    for each in inspect.signature(function).parameters.values():
        if each.kind is each.KEYWORD_ONLY and not is_starred:
            words.append("*")
        is_starred |= each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        value = each.default.value if isinstance(each.default, Enum) else each.default
        is_plain = isinstance(value, str | int | float | bool | tuple | type(None))
        default = repr(value) if is_plain else "..."
        words.append(stars + each.name + ("" if each.default is each.empty else f"={default}"))
    return f"({', '.join(words)})"


def lines(path, item):
    """Yield a line for a public object, and for each public member of a class of simrank's."""
    if inspect.isclass(item):
        is_plain = issubclass(item, BaseException | Enum)
        yield path + ("" if is_plain or item.__init__ is object.__init__ else signature(item))
        for name, member in sorted(vars(item).items()):
            if not name.startswith("_") and (
                inspect.isfunction(member)
                or isinstance(member, property | classmethod | staticmethod)
            ):
                function = getattr(member, "__func__", member)
                yield f"{path}.{name}" + (
                    "" if isinstance(member, property) else signature(function)
                )
    elif callable(item):
        yield path + signature(item)
    else:
        yield path


def api():
    """Return the text of the whole API."""
    found = []
    for path in MODULES:
        module = import_module(path)
        names = getattr(module, "__all__", None) or [
            name for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == path
        ]  # fmt: skip
        for name in sorted(names):
            value = getattr(module, name)
            if not inspect.ismodule(value):
                found += lines(f"{path}.{name}", value)
    return found


def test_the_public_api_is_frozen():
    """Parameters of functions, and public members of classes."""
    found = api()
    if os.environ.get("SIMRANK_UPDATE"):
        FROZEN.write_text("\n".join(found) + "\n")
    promised = FROZEN.read_text().splitlines()
    gone, new = sorted({*promised} - {*found}), sorted({*found} - {*promised})
    assert (gone, new) == ([], []), "list it in CHANGELOG.md, then SIMRANK_UPDATE=1"


def test_the_frozen_api_has_what_programs_import():
    """The Context and functions of torch, with their parameters."""
    text = FROZEN.read_text()
    for start in (
        "simrank.Context(cluster='hgx_h100', *, seed=0",
        "simrank.distributed.all_reduce(tensor, op='sum', group=None",
        "simrank.multiprocessing.spawn(fn, args=()",
        "simrank.validate.WorkerPool(",
    ):
        assert f"\n{start}" in f"\n{text}", start
    assert simrank.__all__ == sorted(simrank.__all__)
