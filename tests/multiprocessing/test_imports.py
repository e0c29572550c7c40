"""What a program will import is read off its files; nothing of it runs."""

import pytest

from simrank.multiprocessing import imports


def found(source, libraries=("torch",)):
    """Return what a program imports of some libraries."""
    return imports.will_import(compile(source, "program.py", "exec"), libraries)


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
    assert imports.find("package.inner.leaf").name == "package.inner.leaf"
    assert imports.find("package.inner.none") is imports.find("none_at_all") is None


def test_what_an_installed_package_requires_counts(monkeypatch):
    """Directly, or by what it requires; what only an extra requires does not."""
    needs = {
        "trainer": ["helper>=1", "rich"],
        "helper": ["torch (>=2.0) ; python_version > '3.8'"],
        "viewer": ["torch>=2; extra == 'gpu'"],
        "rich": None,
    }
    monkeypatch.setattr(imports, "packages_distributions", lambda: {n: [n] for n in needs})
    monkeypatch.setattr(imports, "requires", needs.get)
    assert found("import trainer.parts") == ["torch"]
    assert found("import viewer") == []
