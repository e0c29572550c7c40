"""A place is known by all that a program can read there, wherever it keeps it."""

import types

import pytest

from simrank.timings.places import digest_of
from simrank.timings.values import Inspection

# Each keeps the first number that it was shown: `note(number)`, and `read()` returns it.
KEPT = {
    "a global": """
        first = None
        def note(number):
            global first
            first = first or number
        def read():
            return first
        """,
    "a global that a function of a function reads": """
        first = []
        note = first.append
        def read():
            return (lambda: [first[0] for _ in "x"])()
        """,
    "a closure": """
        def make():
            first = None
            def note(number):
                nonlocal first
                first = first or number
            return note, lambda: first
        note, read = make()
        """,
    "a default": """
        def note(number, found=[]):
            found.append(number)
        def read():
            return note.__defaults__[0][0]
        """,
    "an attribute of a function": """
        def note(number):
            note.first = note.first or number
        note.first = None
        def read():
            return note.first
        """,
    "an attribute of a class": """
        class Found:
            first = None
        def note(number):
            Found.first = Found.first or number
        def read():
            return Found.first
        """,
    "a base of a class": """
        class Base:
            found = []
        class Found(Base):
            pass
        note = Base.found.append
        def read():
            return Found.found[0]
        """,
    "a class method": """
        class Found:
            found = []
            @classmethod
            def note(cls, number):
                cls.found.append(number)
            @property
            def first(self):
                return self.found[0]
        note = Found.note
        def read():
            return Found().first
        """,
    "a slot": """
        class Found:
            __slots__ = ("first",)
        found = Found()
        def note(number):
            found.first = getattr(found, "first", number)
        def read():
            return found.first
        """,
    "an attribute of a list": """
        class Found(list):
            pass
        found = Found()
        def note(number):
            found.first = getattr(found, "first", number)
        def read():
            return found.first
        """,
    "a dict with a default": """
        from collections import defaultdict
        found = defaultdict(list)
        def note(number):
            found["x"].append(number)
        def read():
            return found["x"][0]
        """,
    "a partial": """
        from functools import partial
        found = []
        note = partial(list.append, found)
        read = partial(list.__getitem__, found, 0)
        """,
    "a bound method": """
        found = []
        note = found.append
        read = found.copy
        """,
    "a text": """
        import io
        found = io.StringIO()
        def note(number):
            found.write(str(number))
        read = found.getvalue
        """,
    "a generator of random numbers": """
        import random
        found = random.Random(0)
        def note(number):
            for _ in range(number % 2):
                found.random()
            found.seed(found.random() * number)
        read = found.random
        """,
    "numpy's random numbers": """
        import numpy as np
        found = np.random.default_rng(0)
        def note(number):
            found.bit_generator.advance(number ** len(seen))
            seen.append(0)
        seen = []
        read = found.random
        """,
    "an iterator": """
        found = iter(range(9))
        total = 0
        def note(number):
            global total
            total = total or number
            if total == 2:
                next(found)
            total = 1 if number == 2 else total
        def read():
            return next(found)
        """,
    "an array": """
        import numpy as np
        found = np.zeros(2)
        def note(number):
            found[0] = found[0] or number
        def read():
            return found[0]
        """,
    "which of two equal lists is meant": """
        one, other = [], []
        found = None
        def note(number):
            global found
            if found is None:
                found = one if number == 1 else other
        def read():
            found.append(1)
            return one, other
        """,
    "which half of an array is meant": """
        import numpy as np
        both = np.zeros(4)
        found = None
        def note(number):
            global found
            if found is None:
                found = both[:2] if number == 1 else both[2:]
        def read():
            found[:] = 1
            return both
        """,
    "what a weak reference is to": """
        import weakref
        class Found:
            pass
        one, other = Found(), Found()
        found = None
        def note(number):
            global found
            found = found or weakref.ref(one if number == 1 else other)
        def read():
            return found() is one, other
        """,
    "an exception": """
        found = ValueError([])
        def note(number):
            found.args[0].append(number)
        def read():
            return found.args
        """,
    "the order of a set of objects": """
        class Found:
            def __init__(self, number):
                self.number = number
        found = set()
        def note(number):
            found.add(Found(number)) if not found else None
        def read():
            return [each.number for each in found]
        """,
    "a function that is put into another's place": """
        def one():
            return 1
        def two():
            return 2
        chosen = None
        def note(number):
            global chosen
            chosen = chosen or (one if number == 1 else two)
        def read():
            return chosen()
        """,
    "a global that is read by name": """
        first = None
        def note(number):
            globals()["first"] = first or number
        def read():
            return globals()["first"]
        """,
    "a state of its own pickling": """
        class Found:
            first = None
            def __getstate__(self):
                return None
        found = Found()
        def note(number):
            found.first = found.first or number
        def read():
            return found.first
        """,
    "which of two functions of one line is meant": """
        chosen = None
        def note(number):
            global chosen
            chosen = chosen or ((lambda: 1) if number == 1 else (lambda: 2))
        def read():
            return chosen()
        """,
    "a class of a list": """
        found = None
        def note(number):
            global found
            class Found(list):
                def first(self, number=number):
                    return number
            found = found or Found([0])
        def read():
            return found.first()
        """,
    "an attribute of an enum's member": """
        import enum
        class Found(enum.Enum):
            ONE = 1
        def note(number):
            Found.ONE.first = getattr(Found.ONE, "first", number)
        def read():
            return Found.ONE.first
        """,
    "the length of a deque": """
        from collections import deque
        found = None
        def note(number):
            global found
            found = deque(maxlen=number) if found is None else found
        def read():
            return found.maxlen
        """,
    "the cause of an error": """
        found = None
        def note(number):
            global found
            if found is None:
                found = ValueError("x")
                found.__cause__ = KeyError(number)
        def read():
            return found.__cause__.args
        """,
    "a callback of a library": """
        import contextlib
        found, stack = [], contextlib.ExitStack()
        def note(number):
            if not found:
                found.append(0)
                stack.callback(print, number)
        def read():
            stack.close()
        """,
    "memory beyond a view": """
        import numpy as np
        view = np.zeros(4)[:2]
        def note(number):
            view.base[3] = view.base[3] or number
        def read():
            return view.base[3]
        """,
    "a name with two underscores": """
        __first = None
        def note(number):
            global __first
            __first = __first or number
        def read():
            return __first
        """,
    "a cache": """
        import functools
        seen = []
        @functools.cache
        def first(key):
            return seen.pop()
        def note(number):
            seen.append(number)
            first(0)
            seen.clear()
        def read():
            return first(0)
        """,
    "a generator": """
        def find():
            first = yield
            while True:
                yield first
        found = find()
        next(found)
        note = found.send
        def read():
            return next(found)
        """,
}
NOT_SEEN = ("a state of its own pickling", "a cache", "a generator")


def look(text, numbers):
    """Return the digest of `read` after `note` of some numbers, and whether it is sure."""
    module = types.ModuleType("program")
    lines = text.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    exec("\n".join(line[indent:] for line in lines), vars(module))  # noqa: S102 - the program
    for number in numbers:
        module.note(number)
    seen = Inspection(())
    digest = digest_of(seen.at(module.read))
    return digest, seen.is_sure


@pytest.mark.parametrize("name", KEPT)
def test_what_a_program_keeps_is_seen(name):
    """Or the place is unsure."""
    digest, is_sure = look(KEPT[name], (1, 2))
    other, _ = look(KEPT[name], (2, 1))
    assert is_sure == (name not in NOT_SEEN)
    assert not is_sure or digest != other


@pytest.mark.parametrize("name", [name for name in KEPT if name not in NOT_SEEN])
def test_equal_values_are_equal(name):
    """In each run of a search its objects are others."""
    assert look(KEPT[name], (1, 2)) == look(KEPT[name], (1, 2))
