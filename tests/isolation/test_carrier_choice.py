"""What a program will import is read off its files; nothing of it runs."""

import functools
import importlib.util
import sys
import types

import numpy as np
import pytest

from simrank.isolation import carrier_choice, libraries


def found(source, libraries=("torch",)):
    """Return what a program imports of some libraries."""
    return carrier_choice.will_import(compile(source, "program.py", "exec"), libraries)


@pytest.mark.parametrize(
    "source",
    [
        "import torch",
        "import torch.distributed as dist",
        "from torch.nn import Linear",
        "def main(wanted):\n    if wanted:\n        import torch",
        "class A:\n    def f(self):\n        return exec\n    import torch",
    ],
)
def test_an_import_anywhere_in_the_program_counts(source):
    """At the top, in a function, in a class; whether it will be reached or not."""
    assert found(source) == ["torch"]


OTHERS = ["import torchvision_of_mine", "torch = 1", "x = 'import torch'", ""]


@pytest.mark.parametrize("source", OTHERS)
def test_other_programs_do_not_import_it(source):
    """A name that begins alike, a variable, a text."""
    assert found(source) == []


def test_a_missing_module_may_import_it_where_the_program_adds_folders():
    """Nobody knows what lies there; a missing module alone is one that is optional."""
    adds = "import sys\nsys.path.insert(0, '/elsewhere')\n"
    assert found(adds + "import module_of_elsewhere") == ["torch"]
    assert found(adds + "import json") == []
    assert found("import module_of_elsewhere") == []


def test_own_modules_are_followed_and_not_run(tmp_path, monkeypatch):
    """At any depth, in packages, in circles."""
    (tmp_path / "first.py").write_text("import package.second\nraise SystemExit\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("raise SystemExit\n")
    (tmp_path / "package" / "second.py").write_text("import first\nfrom torch import nn\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert found("import first") == ["torch"]
    (tmp_path / "package" / "second.py").write_text("import first\n")
    assert found("import first") == []


def test_folders_without_an_init_are_followed(tmp_path, monkeypatch):
    """At the top, and inside of packages that nobody has imported."""
    for folder in ("outer/inner", "package/inner"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "leaf.py").write_text("import torch\n")
    (tmp_path / "package" / "__init__.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert found("import outer.inner.leaf") == ["torch"]
    assert found("import package.inner.leaf") == ["torch"]
    assert carrier_choice.find("package.inner.leaf").name == "package.inner.leaf"
    assert carrier_choice.find("package.inner.none") is carrier_choice.find("none_at_all") is None


def test_what_an_installed_package_requires_counts(monkeypatch):
    """Directly, or by what it requires; what only an extra requires does not."""
    needs = {
        "trainer": ["helper>=1", "rich"],
        "helper": ["torch (>=2.0) ; python_version > '3.8'"],
        "viewer": ["torch>=2; extra == 'gpu'"],
        "rich": None,
    }
    monkeypatch.setattr(carrier_choice, "packages_distributions", lambda: {n: [n] for n in needs})
    monkeypatch.setattr(carrier_choice, "requires", needs.get)
    assert found("import trainer.parts") == ["torch"]
    assert found("import viewer") == []


# ---- whether a function reaches a library that something else has imported ----


def _module(name, source, folder):
    """Import a module of the program's own from a file."""
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Make modules of a program beside `keeper`, a library that needs threads and is imported."""
    monkeypatch.setattr(libraries, "_libraries", {"keeper": None})
    before = dict(sys.modules)
    _module("keeper", "class Tensor: pass\n", tmp_path)
    yield lambda name, source: _module(name, source, tmp_path)
    for name in sys.modules.keys() - before.keys():
        del sys.modules[name]


REACHES = {
    "its module imports it": ("import keeper\ndef f(rank): pass", "f", ()),
    "its module holds a class of it": ("from keeper import Tensor\ndef f(rank): pass", "f", ()),
    "its module holds an object of it": (
        "import sys\nx = sys.modules['keeper'].Tensor()\ndef f(rank): pass", "f", (),
    ),
    "it imports it when it is called": ("def f(rank):\n    import keeper", "f", ()),
    "a module of its module does": ("import user\ndef f(rank): pass", "f", ()),
    "it is made by a function that closes over it": (
        "def make(x):\n    def f(rank): return x\n    return f\n"
        "import sys\nf = make([sys.modules['keeper'].Tensor()])\n", "f", (),
    ),
    "an argument is one of its objects": ("def f(rank, x): pass", "f", ["tensor"]),
    "an argument holds one": ("def f(rank, x): pass", "f", [{"a": ("tensor",)}]),
    "an argument is a function that uses it": ("def f(rank, x): pass", "f", ["function"]),
    "an argument is a partial of such a function": ("def f(rank, x): pass", "f", ["partial"]),
    "a class derives from one of its classes": ("def f(rank, x): pass", "f", ["derived"]),
}  # fmt: skip


@pytest.mark.parametrize("case", REACHES)
def test_a_program_that_reaches_a_library_uses_it(case, module):
    """By what its modules hold, import and are given."""
    user = module("user", "import keeper\nclass Derived(keeper.Tensor): pass\ndef g(): pass\n")
    made = {
        "tensor": sys.modules["keeper"].Tensor(),
        "function": user.g,
        "partial": functools.partial(user.g),
        "derived": user.Derived,
    }

    def put(value):
        if isinstance(value, dict):
            return {key: put(each) for key, each in value.items()}
        return tuple(map(put, value)) if isinstance(value, tuple) else made[value]

    source, name, args = REACHES[case]
    program = module("program_of_threads", source)
    assert carrier_choice.uses_library(getattr(program, name), [put(arg) for arg in args])


def test_a_file_that_is_run_under_a_name_counts(module):
    """As `simrank kernels check` runs one: no module has its names, but its functions do."""
    module("user", "import keeper\ndef g(): pass\n")
    for import_ in ("import keeper", "from keeper import Tensor", "from user import g"):
        names = {"__name__": "user"}
        exec(f"{import_}\ndef h(): pass\ndef f(rank): return h", names)  # noqa: S102 - as there
        assert carrier_choice.uses_library(names["f"], ())
        assert carrier_choice.uses_library(lambda rank, f=names["f"]: f(rank), ())
    names = {"__name__": "ran"}
    exec("import json\ndef f(rank): return json", names)  # noqa: S102 - as there
    assert not carrier_choice.uses_library(names["f"], ())


def test_a_module_of_a_class_of_its_own_counts(module):
    """As lazy modules are; their attributes are not asked for."""
    kind = type("Lazy", (types.ModuleType,), {"__getattr__": lambda self, name: 1 / 0})
    lazy = sys.modules["keeper.lazy"] = kind("keeper.lazy")
    program = module("program_of_a_lazy_module", "def f(rank): pass")
    program.lazy = lazy
    program.f.__globals__["__file__"] = None  # As typed at a prompt: nothing to read.
    assert carrier_choice.uses_library(program.f, ())


def test_a_program_beside_a_library_that_others_imported_does_not_use_it(module):
    """Its carrier is then the same as without that library."""
    program = module(
        "program_of_greenlets",
        "import os, json, numpy, simrank\nfrom functools import partial\n"
        "class A:\n    def f(self, rank, *args): return numpy.ones(3)\n"
        "def f(rank, *args): return simrank.Context\n",
    )
    args = [1, "keeper", np.ones(3), [{"x": (None,)}], program.A(), len]
    assert not carrier_choice.uses_library(program.f, args)
    assert not carrier_choice.uses_library(program.A().f, args)
    assert not carrier_choice.uses_library(functools.partial(program.f, *args), ())


def test_an_object_that_lies_about_its_class_is_not_asked(module):
    """Neither its class nor its attributes: each may do anything."""
    program = module(
        "program_of_a_proxy",
        "class Proxy:\n"
        "    __class__ = property(lambda self: 1 / 0)\n"
        "    def __getattr__(self, name): raise SystemError(name)\n"
        "    def __eq__(self, other): raise SystemError\n"
        "    __hash__ = None\n"
        "proxy = Proxy()\ndef f(rank, *args): pass\n",
    )
    assert not carrier_choice.uses_library(program.f, [program.proxy])
