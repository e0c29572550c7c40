"""The ledger of the names that simrank replaces in modules, classes and objects of others.

What is replaced for a Context is in the ledger of `stdlib`; what is for less (locks for ranks on
threads, torch's devices) is in ledgers of its own. `entries` yields those of all.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ABSENT = object()  # In place of a value: the owner has none of its own.


class Replacement(NamedTuple):
    """A replaced name.

    Attributes:
        owner: A module, a class or an object.
        name: Of its attribute.
        value: What has replaced it.
        held: What lay under the name, such as a static method; ABSENT: the owner had none itself.
        names: The module's names if the value lies there, past what its class has of that name.
        yields: See `Ledger.replace`.
        home: The module of simrank that has asked for it.
    """

    owner: Any
    name: str
    value: Any
    held: Any
    names: dict[str, Any] | None
    yields: Callable[[], Any] | bool
    home: str


def plain(held: Any) -> Any:  # noqa: ANN401 - any value
    """Return the function of a static method, and anything else itself."""
    return held.__func__ if type(held) is staticmethod else held


class Ledger:
    """Replaced names, restored in reverse order.

    Args:
        home: The module of simrank that replaces them, where a call gives no other.

    Attributes:
        entries: They, in order.
    """

    def __init__(self, home: str) -> None:
        self._home = home
        self.entries: list[Replacement] = []
        self._ids: set[int] = set()  # Of the values; entries keep them.
        _ledgers.add(self)

    def replace(
        self,
        owner: Any,  # noqa: ANN401 - anything
        name: str,
        value: Any,  # noqa: ANN401 - anything
        *,
        over: bool = False,
        yields: Callable[[], Any] | bool = False,
        home: str = "",
    ) -> None:
        """Replace an attribute; a name of a module past the module's class.

        Args:
            owner: A module, a class or an object.
            name: Of the attribute.
            value: The new one.
            over: Whether it may replace what this ledger has put there; otherwise that is a bug.
            yields: Whether the program may set it, too, which then stays; or what returns the value
                that the program has set meanwhile, and which is put back.
            home: The module of simrank that asks for it.
        """
        self.replace_all([(owner, name, value)], home or self._home, over=over, yields=yields)

    def replace_all(
        self,
        patches: Sequence[tuple[Any, str, Any]],
        home: str,
        *,
        over: bool = False,
        yields: Callable[[], Any] | bool = False,
    ) -> None:
        """Replace attributes: owner, name and value. One loop, as a Context has hundreds."""
        ids, entries = self._ids, self.entries
        for owner, name, value in patches:
            names = None
            if isinstance(owner, ModuleType) and name in owner.__dict__:
                names = owner.__dict__
                held = names[name]
            elif isinstance(owner, type):
                held = owner.__dict__.get(name, ABSENT)
            else:
                held = _own(owner, name)
            assert id(held) not in ids or over or not self._has(owner, name, held), (
                f"{owner!r}.{name} is replaced twice, the second time by {value!r}"
            )
            ids.add(id(value))
            entries.append(_new(Replacement, (owner, name, value, held, names, yields, home)))
            if names is not None:
                names[name] = value
            else:
                setattr(owner, name, value)

    def _has(self, owner: object, name: str, value: object) -> bool:
        found = [each for each in self.entries if each.value is value]
        return any(each.owner is owner and each.name == name for each in found)

    def restore(self) -> None:
        """Restore all; an error of one is raised when the rest is restored."""
        errors: list[Exception] = []
        entries = self.entries
        while entries:
            owner, name, value, held, names, yields, _ = entries[-1]
            try:
                if yields is not False and _own(owner, name) is not value:
                    pass  # The program has set it meanwhile.
                elif names is not None:
                    names[name] = yields() if callable(yields) else held
                elif held is not ABSENT:
                    setattr(owner, name, held)
                elif name in vars(owner):
                    delattr(owner, name)
            except Exception as error:  # noqa: BLE001 - raised below
                error.add_note(f"simrank: as {name} of {owner!r} was restored")
                errors.append(error)
            del entries[-1]
        self._ids.clear()
        if errors:
            raise errors[0]


_new = tuple.__new__  # As `Replacement._make` has it, without the call.


def _own(owner: Any, name: str) -> Any:  # noqa: ANN401 - any value
    """Return the own value of a name, of the object or of a descriptor of its class; or ABSENT."""
    names: Mapping[str, Any] = getattr(owner, "__dict__", {})
    if name in names:
        return names[name]
    for kind in () if isinstance(owner, type) else type(owner).__mro__:
        if name in kind.__dict__:
            is_set = hasattr(type(kind.__dict__[name]), "__set__")
            return getattr(owner, name, ABSENT) if is_set else ABSENT
    return ABSENT


_ledgers: WeakSet[Ledger] = WeakSet()


def entries() -> Iterator[Replacement]:
    """Yield what is replaced now, by all ledgers."""
    for ledger in list(_ledgers):
        yield from ledger.entries


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:  # noqa: ANN401 - anything
    """Replace an attribute within a block."""
    ledger = Ledger(__name__)
    ledger.replace(owner, name, value)
    try:
        yield
    finally:
        ledger.restore()
