"""A rank's state of torch and of its classes, swapped as its turns begin and end."""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Collection
from copy import copy
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _distributed_c10d as c10d_bindings
from torch.optim import optimizer as _optimizers

from simrank.isolation import mock_patches, set_classes
from simrank.isolation.private_modules import is_of_another_rank
from simrank.torch.devices import activation, rank_devices
from simrank.torch.groups.registry import groups_of
from simrank.torch.groups.work import live_works
from simrank.torch.rank_state.settings import settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simrank.engine import Engine, Task
    from simrank.ranks import Program


# ---- methods that a rank replaces on torch's classes, swapped at its turns ----
# Python sends no notice of a changed class, but it invalidates the version tag of the class and
# of all its subclasses. So one class that is derived from all watched classes is checked as a
# turn ends (40 ns). If its tag is invalid, the classes are compared with their saved attributes
# (0.3 ms), and every difference becomes a patch of the rank.
#
# Others (`autograd.Function`, `DistributedDataParallel`) are watched one by one, once the code of a
# program, or of a package that all share, sets an attribute of them (`set_classes`).

_IS_CACHED = 1 << 19  # Source: Py_TPFLAGS_VALID_VERSION_TAG of CPython's object.h.
_KEPT_BY_PYTHON = ("__annotations__", "__slotnames__")  # Set at the first read.
_HOMES = ("torch.nn.modules.", "torch.optim.")


class Watched:
    """torch's classes whose methods programs replace, and their original attributes.

    Args:
        roots: They, and what torch has derived from them.
    """

    def __init__(self, roots: Sequence[type]) -> None:
        self._roots = tuple(roots)
        self._kinds: list[type] = []
        self._last: tuple[type, ...] = ()
        self._were: dict[type, dict[str, object]] = {}

    def has(self, kind: type) -> bool:
        """Return whether it watches a class."""
        return kind in self._were

    def add(self, kind: type) -> None:
        """Watch one more class, by itself."""
        self._kinds.append(kind)
        self._last = (*self._last, kind)
        self._were[kind] = dict(vars(kind))
        self._settle()

    def look(self) -> None:
        """Save the attributes of the classes, unless they are saved already."""
        if self._kinds and not self.are_changed():
            return
        if self._roots and not self._kinds:
            self._kinds = [kind for root in self._roots for kind in _derived_from(root)]
            bases = {base for kind in self._kinds for base in kind.__bases__}
            self._last = (*_of_all([kind for kind in self._kinds if kind not in bases]),)
        self._were = {kind: dict(vars(kind)) for kind in self._kinds}
        self._settle()

    def begin_turn(self, engine: Engine) -> None:
        """Save changes of the main program; swapped patches of ranks do not count."""
        if mock_patches.are_held(engine):
            self._settle()
        else:
            self.look()

    def end_turn(self, task: Task) -> None:
        """Record the changes of a rank as its patches."""
        for kind, were in self._were.items():
            for name, before in _changes(were, vars(kind)):
                value = vars(kind).get(name, mock_patches.ABSENT)
                if name in _KEPT_BY_PYTHON or _is_not_the_programs(before, value):
                    _update(were, name, value)
                else:
                    mock_patches.note(task, kind, name, before)
        mock_patches.drop_restored(task)
        self._settle()

    def are_changed(self) -> bool:
        """Return whether a class has changed since the last check."""
        for kind in self._last:  # noqa: SIM110 - a generator takes longer, twice a turn
            if not kind.__flags__ & _IS_CACHED:
                return True
        return False

    def _settle(self) -> None:
        for kind in self._last:  # Looking a name up marks a class, and its bases, as unchanged.
            getattr(kind, "__init__", None)


def _derived_from(root: type) -> Iterator[type]:
    """Yield a class and torch's subclasses of it that can be subclassed."""
    yield root
    kinds: list[type] = type.__subclasses__(root)
    for kind in kinds:
        is_plain = type(kind) is type(root) and "__init_subclass__" not in vars(kind)
        if is_plain and f"{kind.__module__}.".startswith(_HOMES):
            yield from _derived_from(kind)


def _of_all(kinds: Sequence[type]) -> Iterator[type]:
    """Yield classes derived from all of these; one, if their orders of bases agree."""
    kinds = list(dict.fromkeys(kinds))
    try:
        yield type(kinds[0])("_Last", tuple(kinds), {"__module__": __name__})
    except TypeError:
        if len(kinds) == 1:
            raise
        middle = len(kinds) // 2
        yield from _of_all(kinds[:middle])
        yield from _of_all(kinds[middle:])


def _changes(were: dict[str, object], are: Any) -> list[tuple[str, object]]:
    """Return the changed attributes of a class, with their former values."""
    found = [
        (name, value)
        for name, value in were.items()
        if are.get(name, mock_patches.ABSENT) is not value
    ]
    if len(found) + len(are) > len(were):  # Else nothing has come to it.
        found += [(name, mock_patches.ABSENT) for name in are if name not in were]
    return found


def _update(were: dict[str, object], name: str, value: object) -> None:
    if value is mock_patches.ABSENT:
        were.pop(name, None)
    else:
        were[name] = value


def _is_not_the_programs(before: object, value: object) -> bool:
    """Return whether simrank or torch changed an attribute, and not the program."""
    home, earlier = _home_of(value), _home_of(before)
    is_put_back = earlier.startswith("simrank.") and home.partition(".")[0] in ("", "torch")
    return is_put_back or home.startswith("simrank.") or home == _optimizers.__name__


def _home_of(value: Any) -> str:
    """Return the name of the module that defines a method or property."""
    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    return str(getattr(function, "__globals__", {}).get("__name__", ""))


_watched: list[Watched] = []
_single = Watched([])


def look_at_classes() -> None:
    """Save the attributes of the classes as a Context is entered."""
    if not _watched:
        _watched.extend(
            [Watched([torch.nn.Module]), Watched([torch.optim.Optimizer]), Watched([torch.Tensor])]
        )
        _watched.append(_single)
        set_classes.watchers.append(_watch_class)
    for each in _watched:
        each.look()


def _watch_class(kind: type) -> None:
    """Watch a class that a program's code sets attributes of, if it is torch's."""
    if kind.__module__.partition(".")[0] == "torch" and not any(e.has(kind) for e in _watched):
        _single.add(kind)


def show_own_classes(is_on: bool) -> None:
    """Hide classes of other ranks from `__subclasses__()` of torch's classes.

    Programs that replace methods of all subclasses would replace those of other ranks.
    """
    for root in (torch.nn.Module, torch.optim.Optimizer, torch.Tensor):
        if is_on:
            root.__subclasses__ = classmethod(_own_subclasses)  # type: ignore[method-assign, assignment]
        elif "__subclasses__" in vars(root):
            del root.__subclasses__


def _own_subclasses(cls: type) -> list[type]:
    kinds: list[type] = type.__subclasses__(cls)
    return [kind for kind in kinds if not is_of_another_rank(kind)]


def begin_turn_of_classes(engine: Engine) -> None:
    """Save changes of the main program."""
    for each in _watched:
        if each.are_changed():
            each.begin_turn(engine)


def end_turn_of_classes(task: Task | None) -> None:
    """Record the changes of a rank in its turn."""
    for each in _watched:
        if task is not None and each.are_changed():
            each.end_turn(task)


# ---- a rank's state of torch ----

EAGER = "compiles nothing"  # In `Program.local` of a rank whose functions run as written.
FRAMES = "Dynamo's frames"  # In `Program.local`, of a rank that compiles; see `dynamo.py`.
_bindings: Any = c10d_bindings
_generator = torch.default_generator


class HubGenerator:
    """The main program's CPU generator, saved while ranks have their turns.

    Ranks that pass the turn on among themselves leave the generator as it is, so it is put back
    once, as the hub goes on: reading and setting it take as long as the rest of a turn.
    """

    def __init__(self) -> None:
        self._state: torch.Tensor | None = None

    def leave(self) -> None:
        """Save the generator's state once."""
        if self._state is None:
            self._state = _generator.get_state()

    def enter(self) -> None:
        """Restore the generator's state."""
        if self._state is not None:
            _generator.set_state(self._state)
            self._state = None


class _Registries:
    """C++'s registries of a rank's groups, one per native thread.

    A group that one thread makes or destroys is known in C++ to that thread alone; the others
    learn of it as their turns begin. A rank that has never had a second thread pays nothing.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._first: int | None = None
        self._known: dict[int, dict[Any, str]] = {}  # Of each thread, where there are several.

    def begin(self) -> None:
        """Register the rank's groups for a new thread."""
        thread = get_ident()
        if self._first is None:
            self._first = thread
        elif not self._known:
            self._known[self._first] = dict(groups_of(self._program).pg_names)
        if thread != self._first:
            self._known[thread] = {}
            self.enter()
            return
        for group, name in groups_of(self._program).pg_names.items():
            _bindings._register_process_group(name, group)

    def enter(self) -> None:
        """Apply the changes of other threads to the running thread's registry."""
        if not self._known or (known := self._known.get(get_ident())) is None:
            return
        present = groups_of(self._program).pg_names
        if known != present:
            for _, name in known.items() - present.items():
                _bindings._unregister_process_group(name)
            for group, name in present.items() - known.items():
                _bindings._register_process_group(name, group)

    def leave(self) -> None:
        """Save the running thread's registry."""
        if self._known and (thread := get_ident()) in self._known:
            self._known[thread] = dict(groups_of(self._program).pg_names)

    def end(self) -> None:
        """Clear the registries of the thread, whose id will be used again."""
        works = live_works.pop(get_ident(), ())
        if _bindings._get_work_registry_size():  # Functional calls that `wait_tensor` has not seen.
            for tensor in [tensor for work in works for tensor in work.abandon()]:
                torch.ops._c10d_functional.wait_tensor(tensor)
        _bindings._unregister_all_process_groups()
        self._known.pop(get_ident(), None)


class TorchState:
    """The state of one rank: its CPU generator and settings are in place while it has the turn.

    What torch keeps per native thread (grad and inference mode, autocast, dispatch modes, default
    device) is the rank's own because its thread is.
    """

    def __init__(self, program: Program) -> None:
        self._seed = rank_devices.first_seed(program)
        self._program = program
        self._settings = settings_of(program)
        self._own: torch.Tensor | None = None
        self._globals = ProcessGlobals(NAMES)
        self._registries = _Registries(program)
        turns = program.engine.turns
        if turns.of_hub is None:
            turns.of_hub = HubGenerator()
        self._of_hub = turns.of_hub

    @property
    def turn(self) -> TorchState:
        """Return self: it observes turns."""
        return self

    def settings(self) -> Iterator[object]:
        """Yield what the rank has set, and the modes of its thread."""
        yield torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                yield kind, str(torch.get_autocast_dtype(kind))
        yield from self._settings.values()

    def begin(self) -> None:
        """Run backward on the rank's own thread, and register its groups there."""
        torch.autograd.set_multithreading_enabled(False)
        self._registries.begin()
        context: Any = self._program.context
        if not context.has_values:  # Tensors of the host may lack values, too, from the start.
            activation.enable_where_possible(self._program)

    def lose(self) -> None:
        """Forget which threads C++ knows."""
        activation.lose_threads(self._program)

    def end(self) -> None:
        """Release the state that C++ keeps for the thread."""
        self._registries.end()
        activation.end_of_rank(self._program)

    def enter(self) -> None:
        """Put the rank's random numbers and settings in place."""
        self._of_hub.leave()
        if self._own is None:
            _generator.manual_seed(self._seed)
        else:
            _generator.set_state(self._own)
        self._settings.enter()
        self._globals.enter()
        self._registries.enter()
        if (frames := self._program.local.get(FRAMES)) is not None:
            frames.enter()
        begin_turn_of_classes(self._program.engine)
        activation.begin_turn(self._program)

    def leave(self) -> None:
        """Save the rank's state, and restore the common settings."""
        activation.flush()
        end_turn_of_classes(self._program.task)
        if (frames := self._program.local.get(FRAMES)) is not None:
            frames.leave()
        self._registries.leave()
        self._globals.leave()
        self._settings.leave()
        self._own = _generator.get_state()


# ---- Globals of torch's modules that belong to a process ----

Place = tuple[str, str, object]  # Module, a global or an attribute of one, and its first value.

NAMES: tuple[Place, ...] = (
    ("torch.distributed._shard.api", "_CURRENT_PROCESS_GROUP", None),
    ("torch.distributed.checkpoint._async_process_executor", "_CHECKPOINT_PROCESS", None),
    ("torch.distributed.debug", "_DEBUG_SERVER_PROC", None),
    ("torch.distributed.debug", "_WORKER_SERVER", None),
    ("torch.distributed.elastic.timer.api", "_timer_client", None),
    ("torch.distributed.fsdp._fsdp_extensions", "_extensions", None),
    ("torch.nn.parallel._functions", "_streams", None),
)


class ProcessGlobals:
    """Values that a process has once: a rank's own are in place during its turns.

    Args:
        places: Where they are.
        is_new: Whether the rank begins with the first values, and not with the common ones; with
            containers it does.
    """

    def __init__(self, places: Sequence[Place], *, is_new: bool = False) -> None:
        self._places = [
            (place[:2], place[0], *place[1].rpartition(".")[::2], place[2]) for place in places
        ]
        # A container is changed in place: that of the module stays as it is.
        self._own: dict[tuple[str, str], Any] = {
            place[:2]: copy(place[2])
            for place in places
            if is_new or isinstance(place[2], Collection)
        }
        self._common: dict[tuple[str, str], Any] = {}

    def enter(self) -> None:
        """Put the rank's values in place; it takes over the common ones that it has none for."""
        common, own, modules = {}, self._own, sys.modules
        for key, module_name, owner_name, attribute, _ in self._places:
            if (module := modules.get(module_name)) is not None:
                owner: Any = getattr(module, owner_name) if owner_name else module
                common[key] = value = vars(owner).get(attribute)
                if (mine := own.get(key, value)) is not value:
                    _set(owner, attribute, mine)
        self._common = common

    def leave(self) -> None:
        """Put the common values back."""
        common, own, modules = self._common, self._own, sys.modules
        for key, module_name, owner_name, attribute, first in self._places:
            if (module := modules.get(module_name)) is not None:
                owner: Any = getattr(module, owner_name) if owner_name else module
                own[key] = value = vars(owner).get(attribute)
                if (before := common.get(key, first)) is not value:
                    _set(owner, attribute, before)


def _set(owner: Any, name: str, value: object) -> None:
    """Set an attribute; of a module past its class, which would note it as the program's."""
    if isinstance(owner, type):
        setattr(owner, name, value)
    else:
        vars(owner)[name] = value
