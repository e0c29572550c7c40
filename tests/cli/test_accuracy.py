"""`simrank accuracy`: how far the cost models are from what was measured."""

import pytest

from simrank.cli import main
from simrank.config.locate import builtin_names

TABLES = builtin_names("gemm")


BF16 = "bf16xbf16->bf16"


@pytest.mark.slow
def test_the_command_prints_the_errors(capsys):
    """Per device, dtype and size class."""
    with pytest.raises(SystemExit) as caught:
        main(["accuracy", "gemm"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert sum(name in out for name in TABLES) == len(TABLES)
    assert BF16 in out
