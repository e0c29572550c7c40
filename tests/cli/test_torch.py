"""`simrank torch build`."""

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import simrank
from simrank.cli import main


def run(*args):
    """Return the exit status."""
    with pytest.raises(SystemExit) as end:
        main(list(args))
    return end.value.code


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_it_says_what_to_install(capsys):
    """Status 1, one message."""
    assert run("torch", "build") == 1
    assert "to fix: pip install torch" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_the_library_is_there_afterwards_and_a_second_build_is_none(capsys):
    """It prints where."""
    for _ in range(2):
        assert run("torch", "build") == 0
        assert "libsimrank_cuda.so" in capsys.readouterr().out


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_the_library_can_be_put_where_wheels_carry_it(tmp_path, capsys):
    """In a folder by the release of torch, from which it is loaded."""
    import torch

    release = ".".join(torch.__version__.split(".")[:2])
    assert run("torch", "build", "--into", str(tmp_path / "lib")) == 0
    built = tmp_path / "lib" / release / "libsimrank_cuda.so"
    assert built.stat().st_size > 1e5
    assert str(built) in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("has_library", [False, True])
def test_a_wheel_with_libraries_is_for_their_platform(has_library, tmp_path):
    """And one without for all; the files are where the package looks for them."""
    root = Path(simrank.__file__).parent.parent
    if not (root / "pyproject.toml").is_file():
        pytest.skip("simrank is not installed from its source")
    names = ("simrank", "configs", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE")
    for name in names:
        copy = shutil.copytree if (root / name).is_dir() else shutil.copy
        copy(root / name, tmp_path / name)
    shutil.rmtree(tmp_path / "simrank/torch/cuda/lib", ignore_errors=True)
    library = Path("simrank/torch/cuda/lib/2.13/libsimrank_cuda.so")
    if has_library:
        (tmp_path / library).parent.mkdir(parents=True)
        (tmp_path / library).write_bytes(b"a library")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", "out", "."]
    subprocess.run(command, cwd=tmp_path, check=True)
    (wheel,) = (tmp_path / "out").glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl") != has_library
    with zipfile.ZipFile(wheel) as content:
        assert (str(library) in content.namelist()) == has_library
        assert "simrank/configs/clusters/hgx_h100.yaml" in content.namelist()


def test_the_command_is_listed(capsys):
    """And says what it is about."""
    assert run("torch", "--help") == 0
    assert "build" in capsys.readouterr().out
