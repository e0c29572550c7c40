"""Search of a program's code for classes that it sets attributes of.

`torch.autograd.Function.apply = mine`, say, before it runs: a chain of names that ends in a class.
A class that arrives as an argument, or by `setattr`, is not found.
"""

from __future__ import annotations

import dis
import re
import sys
from types import CodeType
from typing import TYPE_CHECKING, Any

from simrank.engine.callsite import is_real

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

watchers: list[Callable[[type], None]] = []  # Called with each class, once per code that sets it.

_CACHE = re.escape(bytes([dis.opmap.get("CACHE", 0)]))
_NAMED = b"|".join(
    re.escape(bytes([dis.opmap[name]])) for name in ("LOAD_ATTR", "LOAD_GLOBAL", "LOAD_NAME")
)
# Opcodes alone: `self.x = y` is in every method, and `dis` takes 2 us for an instruction.
_SETS = re.compile(
    b"(?:" + _NAMED + b")" + _CACHE + b"*" + re.escape(bytes([dis.opmap["STORE_ATTR"]])), re.DOTALL
)
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF", "LOAD_FAST_BORROW")
_STORES = ("STORE_NAME", "STORE_FAST", "STORE_GLOBAL", "STORE_DEREF")
_BETWEEN = ("CACHE", "EXTENDED_ARG", "SWAP", "POP_TOP", "ROT_TWO")  # Of one chain, or one import.


def look(code: CodeType, names: Mapping[str, Any] | None = None) -> None:
    """Call the watchers with each class whose attributes a code, or one within it, sets.

    Args:
        code: Of a module or function.
        names: Of its module, as far as they are there.
    """
    if watchers:
        for kind in _classes(code, dict(names or {})):
            for watcher in watchers:
                watcher(kind)


def _classes(code: CodeType, names: dict[str, Any]) -> Iterator[type]:
    """Yield the classes that codes set attributes of; imports add to the names."""
    within = [each for each in code.co_consts if isinstance(each, CodeType)]
    sets = _SETS.search(code.co_code[::2]) is not None
    if sets or any(map(_has_store, within)):
        yield from _read(code, names)
    for each in within:
        yield from _classes(each, names)


def _has_store(code: CodeType) -> bool:
    if _SETS.search(code.co_code[::2]) is not None:
        return True
    return any(_has_store(each) for each in code.co_consts if isinstance(each, CodeType))


def _read(code: CodeType, names: dict[str, Any]) -> Iterator[type]:
    """Yield the classes at the ends of a code's chains of names; note its imports."""
    held: Any = None  # What the last instruction has loaded.
    source: Any = None  # Of `from` imports.
    imported: Any = None  # The names that one takes; None: `import a.b` or `import a.b as c`.
    for instruction in dis.get_instructions(code):
        kind, name = instruction.opname, instruction.argval
        if kind in _BETWEEN:
            continue
        before, held = held, None
        if kind == "LOAD_CONST":
            imported = name
        elif kind == "IMPORT_NAME":
            held = source = sys.modules.get(name if imported else name.partition(".")[0])
        elif kind == "IMPORT_FROM":
            held = _attribute(source, name)
            source = source if imported else held
        elif kind in _STORES and before is not None:
            names.setdefault(name, before)
        elif kind == "STORE_ATTR" and is_real(before, type):
            yield before
        else:
            held = _loaded(kind, name, before, names)


def _loaded(kind: str, name: Any, before: Any, names: dict[str, Any]) -> Any:  # noqa: ANN401
    """Return the object that an instruction loads, if it is a name of a chain."""
    if kind == "LOAD_ATTR":
        return _attribute(before, name)
    return names.get(name, sys.modules.get(name)) if kind in _LOADS else None


def _attribute(held: Any, name: str) -> Any:  # noqa: ANN401 - any value
    """Return the attribute of a module or class; nothing is computed for it."""
    if held is None:
        return None
    try:
        return vars(held).get(name)
    except TypeError:
        return None
