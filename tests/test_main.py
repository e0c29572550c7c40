"""The command's own entry."""

import sys

import pytest

from simrank.__main__ import main


class _Interrupts:
    """Ctrl-C while the command line is loaded."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        del path, target
        if name == "simrank.cli":
            raise KeyboardInterrupt


def test_ctrl_c_while_the_command_is_loaded_ends_it_without_a_traceback(monkeypatch):
    """With the status that shells give to it."""
    monkeypatch.delitem(sys.modules, "simrank.cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_Interrupts, *sys.meta_path])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 130


def test_the_command_runs(monkeypatch, capsys):
    """As it does from the shell."""
    monkeypatch.setattr(sys, "argv", ["simrank", "--version"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("simrank ")
