"""The command line, run in this process."""

import pytest

from simrank.cli import main


@pytest.fixture
def cli(capsys):
    """Run the command line; returns (status, stdout, stderr)."""

    def run_cli(*args):
        with pytest.raises(SystemExit) as stop:
            main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return stop.value.code or 0, captured.out, captured.err

    return run_cli
