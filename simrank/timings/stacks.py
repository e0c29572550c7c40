"""Values that a frame holds besides its variables, as far as its code tells.

Python does not show the values of a half-computed expression, nor what a C function holds that
calls back (`sorted`, `map`, `min`). So the code says for each instruction where the values on the
stack come from: a variable, a constant, a `range` that a loop counts along. A frame with any other
value there, or in a call of what is no Python function, is not known by its variables.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import re
import sys
from functools import cache
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from types import CodeType, FrameType

Path = tuple[str, ...]  # A variable and its attributes; of a constant nothing.
_UNKNOWN, _NULL = "unknown", "null"


class _Counter(NamedTuple):
    """The iterator of a loop along a `range`: its variable says where it is."""

    names: Path


class _Exit(NamedTuple):
    """The end of a `with` block of a variable."""

    path: Path


class _Value(NamedTuple):
    """An attribute as a value: it may change while it is on the stack."""

    path: Path


class _Method(NamedTuple):
    """A method of an object that is not known."""

    name: str


class FrameStack(NamedTuple):
    """The values on the stack of a frame in the midst of an instruction.

    Attributes:
        names: The variables that they come from.
        is_known: Whether they come from nothing else.
        called: The function that is called, as a path; None: there is none, or it is unknown.
        method: The name of the method of an unknown object that is called, or None.
        is_call: Whether a function is called at all.
    """

    names: frozenset[str]
    is_known: bool
    called: Path | None
    method: str | None
    is_call: bool


_NOTHING_ELSE = ("NOP", "RESUME", "CACHE", "EXTENDED_ARG", "KW_NAMES", "PRECALL", "JUMP",
                 "MAKE_CELL", "COPY_FREE_VARS", "SETUP_ANNOTATIONS", "NOT_TAKEN")  # fmt: skip
_ONLY_POPS = ("STORE_", "POP_", "DELETE_", "END_FOR", "LIST_APPEND", "LIST_EXTEND", "SET_ADD",
              "SET_UPDATE", "MAP_ADD", "DICT_UPDATE", "DICT_MERGE")  # fmt: skip
_LOADS = ("LOAD_NAME", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_GLOBAL",
          "LOAD_DEREF")  # fmt: skip
_TWO_LOADS = ("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW")
# Instructions besides calls that run Python functions, and hold nothing while they do.
_SIMPLE = ("LOAD_ATTR", "STORE_ATTR", "BINARY_SUBSCR", "STORE_SUBSCR", "BEFORE_WITH", "COMPARE_OP",
           "BINARY_OP", "LOAD_SPECIAL", "UNARY_")  # fmt: skip


@cache
def held(code: CodeType, offset: int) -> FrameStack:
    """Return the stack of a frame in the midst of an instruction.

    Args:
        code: The frame's.
        offset: Of the instruction.
    """
    before, after = _stacks(code)
    step = step_at(code, offset)
    offset = step.offset
    if offset not in after:
        return FrameStack(frozenset(), is_known=False, called=None, method=None, is_call=True)
    is_call = step.opname.startswith("CALL")
    num_results = {"STORE": 0, "BEFORE": 2, "DELETE": 0}.get(step.opname.partition("_")[0], 1)
    kept = after[offset][: len(after[offset]) - num_results]
    names = {each[0] for each in kept if _is_path(each) and each}
    names |= {name for each in kept if isinstance(each, _Counter) for name in each.names}
    names |= {each.path[0] for each in kept if isinstance(each, _Exit)}
    is_known = all(_is_kept(code, step, each) for each in kept)
    called: Path | None = None
    method: str | None = None
    if is_call:
        own = before[offset][len(kept) : len(kept) + 2]
        called = next((_path_of(each) for each in own if _path_of(each)), None)
        method = next((each.name for each in own if isinstance(each, _Method)), None)
        if any(isinstance(each, _Exit) for each in own):
            is_call = False
    else:
        is_known &= step.opname.startswith(_SIMPLE)
    return FrameStack(frozenset(names), is_known, called, method, is_call)


def _is_kept(code: CodeType, step: dis.Instruction, slot: object) -> bool:
    """Return whether a value on the stack is still that of its variable."""
    if isinstance(slot, _Exit):
        return len(slot.path) == 1 and len(_stores(code).get(slot.path[0], ())) <= 1
    if isinstance(slot, _Counter):
        return all(None not in _stores(code).get(name, ()) for name in slot.names)
    if not _is_path(slot):
        return slot != _UNKNOWN and not isinstance(slot, _Method | _Value)
    path: Any = slot
    return (
        not path
        or step.positions is None
        or step.positions.lineno not in _stores(code).get(path[0], ())
    )


@cache
def _stores(code: CodeType) -> dict[str, list[int | None]]:
    """Return the lines of all stores of each variable, also by functions within."""
    found: dict[str, list[int | None]] = {}
    for step in dis.get_instructions(code):
        for opname, name in parts(step):
            if opname.startswith("STORE_") and "ATTR" not in opname:
                found.setdefault(name, []).append(step.positions and step.positions.lineno)
    for each in code.co_consts:
        if inspect.iscode(each):
            for name in _stores(each):
                if name in each.co_freevars or name in each.co_names:
                    found.setdefault(name, []).append(None)
    return found


def parts(step: dis.Instruction) -> list[tuple[str, str]]:
    """Return the loads and stores of a variable that an instruction does, and the names."""
    if isinstance(step.argval, str):
        return [(step.opname, step.argval)]
    if not isinstance(step.argval, tuple) or len(step.argval) != 2:
        return []
    # Python 3.13 has one instruction for two: LOAD_FAST_LOAD_FAST, STORE_FAST_LOAD_FAST, ...
    one, other = re.findall(r"(?:LOAD|STORE)_FAST", step.opname) or ("", "")
    return [(one, str(step.argval[0])), (other, str(step.argval[1]))]


@cache
def step_at(code: CodeType, offset: int) -> dis.Instruction:
    """Return the instruction that a frame is in; of a call, Python may say where its cache ends."""
    return max(
        (step for step in dis.get_instructions(code) if step.offset <= max(offset, 0)),
        key=lambda step: step.offset,
    )


def _path_of(slot: Any) -> Path:  # noqa: ANN401 - of any kind
    """Return the path of a slot; empty: it has none."""
    found: Path = slot.path if isinstance(slot, _Value) else slot if _is_path(slot) else ()
    return found


def _is_path(slot: object) -> bool:
    return type(slot) is tuple


def calls_python(frame: FrameType, call: FrameStack, inner: FrameType | None) -> bool:
    """Return whether a frame runs a Python function itself, not through one of C.

    Args:
        frame: That calls.
        call: Its stack.
        inner: The frame that it calls, of C or not.
    """
    if not call.is_call:
        return True
    if call.method is not None and inner is not None:
        original = inner.f_locals.get("original")  # That simrank's function stands for.
        return call.method in (inner.f_code.co_name, getattr(original, "__name__", None))
    if call.called is None:
        return False
    name, *attributes = call.called
    found: Any = None
    for names in (frame.f_locals, frame.f_globals, vars(builtins)):
        if name in names:
            found = names[name]
            break
    for attribute in attributes:
        found = _attribute(found, attribute)
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    return isinstance(found, FunctionType | MethodType)


def _attribute(value: Any, name: str) -> Any:  # noqa: ANN401 - any value
    """Return an attribute without running anything of the program."""
    if isinstance(value, ModuleType):
        return vars(value).get(name)
    return inspect.getattr_static(value, name, None)


# ---- the stack before and after each instruction ----


@cache
def _stacks(code: CodeType) -> tuple[dict[int, tuple[Any, ...]], dict[int, tuple[Any, ...]]]:
    steps = list(dis.get_instructions(code))
    place = {step.offset: number for number, step in enumerate(steps)}
    before: dict[int, tuple[Any, ...]] = {}
    after: dict[int, tuple[Any, ...]] = {}
    entries: Any = getattr(dis.Bytecode(code), "exception_entries", ())
    todo: list[tuple[int, tuple[Any, ...]]] = [(0, ())]
    # What is raised: the stack of the handler's depth, and what Python puts there.
    todo += [(place[each.target], (_UNKNOWN,) * (each.depth + 1 + each.lasti)) for each in entries]
    while todo:
        number, stack = todo.pop()
        if number >= len(steps):
            continue
        step = steps[number]
        known = before.get(step.offset)
        merged = stack if known is None else _merged(known, stack)
        if merged == known:
            continue
        before[step.offset] = merged
        ends = step.opname.startswith(("RETURN", "RAISE", "RERAISE"))
        is_jump = step.opcode in dis.hasjrel or step.opcode in dis.hasjabs
        is_always = step.opname in ("JUMP_FORWARD", "JUMP_ABSOLUTE") or (
            step.opname.startswith("JUMP_BACKWARD")
        )
        if is_jump:
            todo.append((place[step.argval], _run(steps, number, merged, jump=True)))
        if not ends and not is_always:
            after[step.offset] = _run(steps, number, merged, jump=False)
            todo.append((number + 1, after[step.offset]))
    return before, after


def _merged(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the stack of two ways to an instruction."""
    if len(one) != len(other):
        return (_UNKNOWN,) * min(len(one), len(other))
    return tuple(a if a == b else _UNKNOWN for a, b in zip(one, other, strict=True))


def _run(
    steps: list[dis.Instruction], number: int, stack: tuple[Any, ...], *, jump: bool
) -> tuple[Any, ...]:
    """Return the stack after an instruction."""
    step = steps[number]
    name, arg = step.opname, step.arg or 0
    pushed = _pushed(steps, number, stack)
    if pushed is not None:
        num_popped, values = pushed
        return (*stack[: len(stack) - num_popped], *values)
    if name.startswith(_NOTHING_ELSE) and not name.endswith("_OR_POP"):
        return stack
    effect = dis.stack_effect(step.opcode, step.arg, jump=jump)
    if effect > 0:
        return (*stack, *(_UNKNOWN,) * effect)
    kept = stack[: len(stack) + effect]
    is_changed = not name.startswith((*_ONLY_POPS, "FOR_ITER"))  # Else its result is on top.
    num_changed = arg if name == "SWAP" else 1
    return (*kept[:-num_changed], *(_UNKNOWN,) * num_changed) if is_changed and kept else kept


def _pushed(
    steps: list[dis.Instruction], number: int, stack: tuple[Any, ...]
) -> tuple[int, tuple[Any, ...]] | None:
    """Return the number of values that an instruction pops, and those it pushes, or None."""
    step = steps[number]
    name, arg = step.opname, step.arg or 0
    found: tuple[int, tuple[Any, ...]] | None = None
    if name == "PUSH_NULL":
        found = 0, (_NULL,)
    elif name in ("LOAD_CONST", "LOAD_SMALL_INT"):
        found = 0, ((),)
    elif name in ("STORE_FAST_LOAD_FAST", *_LOADS) or name.startswith(_TWO_LOADS):
        loaded = tuple((each,) for opname, each in parts(step) if opname.startswith("LOAD"))
        found = int(name.startswith("STORE")), loaded
        if name == "LOAD_GLOBAL" and arg & 1:
            found = 0, (_NULL, *found[1]) if _IS_NULL_FIRST else (*found[1], _NULL)
    elif name in ("LOAD_METHOD", "LOAD_ATTR") and stack:
        name_of, base = str(step.argval), _path_of(stack[-1])
        is_method = name == "LOAD_METHOD" or dis.stack_effect(step.opcode, arg) == 1
        path: Path | _Method | _Value = _Method(name_of)
        if base:
            path = (*base, name_of) if is_method else _Value((*base, name_of))
        found = 1, (path, stack[-1]) if is_method else (path,)
    elif name == "GET_ITER":
        found = 1, (_counter(steps, number) or _UNKNOWN,)
    elif name == "BEFORE_WITH":
        found = 1, (_Exit(stack[-1]) if _is_path(stack[-1]) and stack[-1] else _UNKNOWN, _UNKNOWN)
    elif name in ("CALL", "CALL_KW"):
        found = arg + 2 + (name == "CALL_KW"), (_UNKNOWN,)
    return found


_IS_NULL_FIRST = sys.version_info < (3, 13)


def _counter(steps: list[dis.Instruction], number: int) -> _Counter | None:
    """Return the iterator of `for name in range(...)` with plain arguments; None of another."""
    first = number
    while first and steps[first - 1].opname in ("CALL", "PRECALL", "CACHE", *_LOADS, "LOAD_CONST",
                                                "PUSH_NULL", "LOAD_SMALL_INT"):  # fmt: skip
        first -= 1
    given = steps[first:number]
    starts = [n for n, step in enumerate(given) if step.argval == "range"]
    if len(starts) != 1 or sum(step.opname == "CALL" for step in given[starts[0] :]) != 1:
        return None
    names = [str(step.argval) for step in given[starts[0] + 1 :] if step.opname in _LOADS]
    stored = steps[number + 2] if number + 2 < len(steps) else None
    if stored is None or not stored.opname.startswith("STORE_") or "ATTR" in stored.opname:
        return None
    loop = steps[number + 1]
    body = [step for step in steps[number + 2 :] if step.offset < loop.argval]
    if sum(opname.startswith("STORE_") and name in (stored.argval, *names)
           for step in body for opname, name in parts(step)) != 1:  # fmt: skip
        return None
    return _Counter((str(stored.argval), *names))
