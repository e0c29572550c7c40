"""The ledger replaces names and puts back what lay there, its descriptor included."""

import types

import pytest

from simrank.isolation import ledger
from simrank.isolation.ledger import Ledger, replaced


class Base:
    inherited = 1


class Owner(Base):
    value = 1

    @staticmethod
    def static():
        return 1

    @classmethod
    def of_class(cls):
        return 1

    @property
    def computed(self):
        return 1


NAMES = ["value", "static", "of_class", "computed", "inherited", "absent"]


@pytest.mark.parametrize("name", NAMES)
def test_a_class_has_what_it_had_itself(name):
    """A static method is one again, and what was inherited is inherited."""
    before, names = dict(vars(Owner)), Ledger(__name__)
    names.replace(Owner, name, 2)
    assert getattr(Owner, name) == 2
    names.restore()
    assert dict(vars(Owner)) == before


def test_an_object_has_what_it_had_itself():
    """The default of its class is not made its own, and what its class computes is set."""
    owner, names = Owner(), Ledger(__name__)
    names.replace(owner, "value", 2)
    names.replace(owner, "__class__", Base)
    assert type(owner) is Base
    names.restore()
    assert (type(owner), vars(owner)) == (Owner, {})


def test_a_name_of_a_module_is_replaced_past_its_class():
    """The class of `sys` within a Context would take the stream for the program's."""

    class Live(types.ModuleType):
        stream = property(lambda _: "of the rank", lambda *_: pytest.fail("set by its class"))

    module, names = types.ModuleType("module"), Ledger(__name__)
    module.stream = "of the program"
    names.replace(module, "__class__", Live)
    names.replace(module, "stream", "of all")
    assert (module.stream, vars(module)["stream"]) == ("of the rank", "of all")
    names.restore()
    assert (type(module), module.stream) == (types.ModuleType, "of the program")


def test_a_name_is_not_replaced_twice_unsaid():
    """A patch of a patch would be called twice."""
    names = Ledger(__name__)
    names.replace(Owner, "value", 2)
    with pytest.raises(AssertionError, match=r"Owner'>\.value is replaced twice.* by 3"):
        names.replace(Owner, "value", 3)
    names.replace(Owner, "value", 3, over=True)
    Owner.value = 4  # Its module has been executed again.
    names.replace(Owner, "value", 5)
    names.restore()
    assert Owner.value == 1


def test_what_the_program_sets_meanwhile_stays_where_it_may():
    """It is kept as it lies there, or asked for where a replacement keeps it."""
    module, names, kept = types.ModuleType("module"), Ledger(__name__), ["set meanwhile"]
    module.lock = module.stream = module.other = "before"
    names.replace(module, "lock", "new", yields=True)
    names.replace(module, "stream", "new", yields=lambda: kept[0])
    names.replace(module, "other", "new", yields=True)
    module.lock = "the program's"
    names.restore()
    found = module.lock, module.stream, module.other
    assert found == ("the program's", "set meanwhile", "before")


def test_the_rest_is_restored_after_an_error():
    """The error is raised then, with the name."""

    class Refusing(type):
        def __setattr__(cls, name, value):
            if value == 1:
                raise RuntimeError("no")
            super().__setattr__(name, value)

    class Refuses(metaclass=Refusing):
        value = 1

    names = Ledger(__name__)
    names.replace(Owner, "value", 2)
    names.replace(Refuses, "value", 2)
    with pytest.raises(RuntimeError, match="no") as caught:
        names.restore()
    assert "as value of" in caught.value.__notes__[0]
    assert (Owner.value, names.entries) == (1, [])


def test_a_block_ends_with_what_was_there():
    """After an error, too, and `entries` has it meanwhile."""
    with pytest.raises(KeyError), replaced(Owner, "value", 2):
        assert [each.name for each in ledger.entries() if each.owner is Owner] == ["value"]
        raise KeyError
    assert Owner.value == 1
