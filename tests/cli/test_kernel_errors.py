"""The tables of errors of single kernels."""

import numpy as np
import pytest
from rich.console import Console

from simrank.bench.kernel_fits import LeftOut
from simrank.cli import main
from simrank.cli.kernel_errors import errors_table


def test_a_row_has_the_error_bias_coverage_and_half_interval():
    """Of each size class with rows."""
    logs = np.log([1.0, 1.1, 0.9, 1.0])
    left = LeftOut("x1", "bfloat16", "own", "x1", np.array([0, 0, 0, 2]), logs)
    table = errors_table([left], {left.key: {0: 0.1, 2: 0.1}}, ("a", "b", "c"))
    console = Console(width=200)
    with console.capture() as shown:
        console.print(table)
    cells = " ".join(shown.get().splitlines()[1].split())
    assert cells == "bfloat16 x1 own: x1 6.7 % (+1) 67 % of 11 % - 0.0 % (+0) 100 % of 11 %"


def test_a_folder_is_needed_to_write_to(capsys):
    """Before anything is fitted."""
    for args in (
        ["--gemm"],
        ["--gemm", "--out", "nowhere/there"],
        ["--gemm", "x.csv", "--out", "."],
    ):
        with pytest.raises(SystemExit) as caught:
            main(["calibrate", "--gemm", *args])
        assert caught.value.code == 2
        assert "--out with a folder" in capsys.readouterr().err
