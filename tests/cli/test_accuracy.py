"""`simrank accuracy`: how far the cost models are from what was measured."""

import json

import pytest

from simrank.cli import main
from simrank.config.locate import builtin_names

TABLES = builtin_names("gemm")


BF16 = "bf16xbf16->bf16"


def run(capsys, *args):
    with pytest.raises(SystemExit) as caught:
        main(["accuracy", *args])
    return caught.value.code, *capsys.readouterr()


@pytest.mark.slow
def test_the_command_prints_the_errors_of_products(capsys):
    """Per device, dtype and size class."""
    status, out, _ = run(capsys, "gemm")
    assert status == 0
    assert sum(name in out for name in TABLES) == len(TABLES)
    assert BF16 in out


def test_every_table_has_its_row_and_the_means_stand_beside_the_aims(capsys):
    """Collectives; loops of frameworks apart, for they have another error."""
    status, out, _ = run(capsys)
    assert status == 0
    assert all(name in out for name in builtin_names("measured"))
    rows = out.splitlines()
    assert rows[0].split()[:5] == ["table", "cluster", "collective", "ranks", "nodes"]
    assert [row.split("  ")[0] for row in rows[-4:]] == [
        "mean: all_reduce, all_gather, reduce_scatter",
        "aim",
        "mean: other collectives",
        "mean: loops of torch and XLA",
    ]


def test_one_table_and_its_rows_as_json(capsys, tmp_path):
    """With every prediction, what was chosen for it, and its error."""
    out_file = tmp_path / "rows.json"
    status, out, _ = run(capsys, "h100x8_aws_p5_allreduce", "--json", str(out_file))
    assert status == 0
    assert "mean" not in out
    (series,) = json.loads(out_file.read_text())
    assert (series["cluster"], series["collective"]) == ("hgx_h100", "all_reduce")
    last = series["rows"][-1]
    assert (last["algorithm"], last["protocol"]) == ("nvls", "Simple")
    assert abs(last["error_pct"]) < 10


def test_a_wrong_name_lists_the_tables_and_writes_nothing(capsys, tmp_path):
    """Exit status 2."""
    out_file = tmp_path / "rows.json"
    status, _, err = run(capsys, "h100x8_aws_p5_allreduc", "--json", str(out_file))
    assert status == 2
    assert "write `h100x8_aws_p5_allreduce`" in err
    assert not out_file.exists()
