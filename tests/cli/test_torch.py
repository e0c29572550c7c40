"""`simrank torch build`."""

import importlib.util

import pytest

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


def test_the_command_is_listed(capsys):
    """And says what it is about."""
    assert run("torch", "--help") == 0
    assert "build" in capsys.readouterr().out
