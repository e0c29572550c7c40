"""Checks that a library still has the names and the parameters that its patches replace.

A patch of a private name fits the releases that it was written for. In another one the name may be
gone, or have a further parameter, which would be a TypeError in the middle of a rank. Patches are
compared with their originals before they are applied, so that it is one error that names them.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    Patches = list[tuple[Any, str, Any]]

_Kind = inspect.Parameter
_ABSENT = object()


def made(module: ModuleType, make: Callable[[ModuleType], Patches]) -> Patches:
    """Return the patches of a module, checked.

    Args:
        module: The library, or a part of it.
        make: Makes its patches.

    Raises:
        UnsupportedError: The library lacks a name that the patches need, or has a parameter that
            they do not take.
    """
    try:
        patches = make(module)
    except (AttributeError, ImportError) as error:
        raise unsupported(module, [str(error)]) from error
    differences = [
        f"{_name_of(owner)}.{name}: {difference}"
        for owner, name, value in patches
        if not _is_protocol(name) and (original := getattr(owner, name, _ABSENT)) is not _ABSENT
        for difference in differences_of(original, value)
    ]
    if differences:
        raise unsupported(module, differences)
    return patches


def _is_protocol(name: str) -> bool:
    """Return whether Python itself calls a method, such as `__exit__`."""
    return name[:2] == name[-2:] == "__" and name not in ("__init__", "__new__", "__call__")


def differences_of(original: Any, replacement: Any) -> Sequence[str]:  # noqa: ANN401 - any value
    """Return the parameters in which a replacement differs from a function, as text.

    Args:
        original: A function, or anything else, which is not compared.
        replacement: Its replacement. One that takes `*args` and `**kwargs` fits all.
    """
    function = getattr(replacement, "__func__", replacement)
    code = getattr(function, "__code__", None)
    if code is None or not callable(original) or isinstance(original, type):
        return ()
    if str(getattr(original, "__module__", "")).startswith("simrank."):  # A patch, bound elsewhere.
        return ()
    try:
        found = _found.setdefault(original, {})
    except TypeError:  # It takes no weak reference, or has no hash.
        found = {}
    if code not in found:
        found[code] = [*_differences(original, function)]
    return found[code]


# By original and the replacement's code: each Context makes its replacements again.
_found: WeakKeyDictionary[Any, dict[object, list[str]]] = WeakKeyDictionary()


def _differences(original: Any, replacement: Any) -> Iterator[str]:  # noqa: ANN401 - as above
    try:
        theirs = [*inspect.signature(original).parameters.values()]
    except (TypeError, ValueError):  # C functions mostly have none.
        return
    ours = [*inspect.signature(replacement, follow_wrapped=False).parameters.values()]
    kinds = {each.kind for each in ours}
    named = {each.name for each in ours if each.kind is not _Kind.POSITIONAL_ONLY}
    num_positional = sum(
        each.kind in (_Kind.POSITIONAL_ONLY, _Kind.POSITIONAL_OR_KEYWORD) for each in ours
    )
    for place, each in enumerate(theirs):
        if each.kind in (_Kind.VAR_POSITIONAL, _Kind.VAR_KEYWORD):
            continue
        is_named = each.kind is _Kind.POSITIONAL_ONLY or (
            _Kind.VAR_KEYWORD in kinds or each.name in named
        )
        is_placed = each.kind is _Kind.KEYWORD_ONLY or (
            _Kind.VAR_POSITIONAL in kinds or place < num_positional
        )
        if not (is_named and is_placed):
            yield f"unknown parameter {each.name}"
    if not any(each.kind in (_Kind.VAR_POSITIONAL, _Kind.VAR_KEYWORD) for each in theirs):
        known = {each.name for each in theirs}
        for place, each in enumerate(ours):
            is_required = each.default is _Kind.empty and each.kind not in (
                _Kind.VAR_POSITIONAL,
                _Kind.VAR_KEYWORD,
            )
            if is_required and each.name not in known and place >= len(theirs):
                yield f"no parameter {each.name}"


def _name_of(owner: Any) -> str:  # noqa: ANN401 - any value
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}"
    return str(getattr(owner, "__name__", type(owner).__qualname__))


def unsupported(module: ModuleType, differences: Sequence[str]) -> UnsupportedError:
    """Return the error of a library that differs from what its patches need.

    Args:
        module: The library, or a part of it.
        differences: A line for each.
    """
    from importlib.metadata import PackageNotFoundError, requires, version  # noqa: PLC0415 - a failure

    package = module.__name__.partition(".")[0]
    try:
        installed = f"{package} {version(package)}"
    except PackageNotFoundError:
        installed = package
    needed = [line.partition(";")[0].strip() for line in requires("simrank") or ()]
    fitting = next(
        (f"pip install '{line}'" for line in needed if line.startswith(package)),
        f"another release of {package}",
    )
    lines = "\n".join(f"  {line}" for line in differences)
    return UnsupportedError(
        f"{installed} has other private names or parameters than simrank uses:\n{lines}\n"
        f"  to fix: {fitting}, or a simrank that knows this release"
    )
