"""`simrank predict`: sizes in, a table or JSON with intervals out."""

import json

import pytest

import simrank
from simrank.cli import main
from simrank.config.locate import locate


def run(capsys, *args):
    """Return exit status, stdout and stderr of `simrank predict`."""
    with pytest.raises(SystemExit) as caught:
        main(["predict", *args])
    out = capsys.readouterr()
    return caught.value.code or 0, out.out, out.err


def test_json_has_the_numbers_of_the_python_function(capsys):
    """For one rank per node, whose group fills none."""
    args = ("--cluster", "h100_ib", "--nodes", "4", "--ranks", "0-31:8", "--size", "1MiB")
    status, out, _ = run(capsys, *args, "--json", "-")
    assert status == 0
    data = json.loads(out)
    found = simrank.predict(
        "all_reduce", 1 << 20, cluster="h100_ib", nodes=4, ranks=range(0, 32, 8)
    )
    assert data["num_ranks"] == found.num_ranks == 4
    assert data["calibration"] == found.calibration
    (row,) = data["rows"]
    assert row["size_bytes"] == 1 << 20
    assert row["low_us"] < row["time_us"] < row["high_us"]
    assert row["time_us"] == found.time_us[0]


def test_the_table_has_nccl_tests_sizes_and_what_the_constants_rest_on(capsys, tmp_path):
    """`-b`, `-e` and `-f` as there; the JSON file has the same rows."""
    path = tmp_path / "rows.json"
    status, out, _ = run(capsys, "-b", "1K", "-e", "1M", "-f", "4", "--json", str(path))
    assert status == 0
    rows = [line.split() for line in out.splitlines() if line.strip()[:1].isdigit()]
    assert [int(row[0]) for row in rows] == [1 << power for power in range(10, 21, 2)]
    assert "low and high: 90% prediction interval" in out
    assert "platform hopper" in out
    assert len(json.loads(path.read_text())["rows"]) == len(rows)


def test_a_network_without_a_table_is_said_to_be_unknown(capsys, tmp_path):
    """With the range of all networks."""
    own = tmp_path / "own.yaml"
    own.write_text(locate("clusters", "h100_ib").read_text().replace("  network: ib\n", ""))
    status, out, _ = run(capsys, "--cluster", str(own), "--size", "1MiB")
    assert status == 0
    assert "not known: no measured table of network unknown" in " ".join(out.split())


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("-b", "1G", "-e", "1M"), "--maxbytes: expected a size of at least --minbytes 1G, got 1M"),
        (("-e", "much"), "--maxbytes: expected a size as in nccl-tests"),
        (("--ranks", "0,99"), "devices from 0 to 7, those of hgx_h100"),
        (("--ranks", "a-b"), "--ranks: expected device numbers such as 0,8,16"),
        (("--ranks", "0-999999999999"), "--ranks: expected device numbers such as 0,8,16"),
        (("--size", "x"), "--size: expected a size as in nccl-tests, for example 16M, got x"),
        (("--ranks", "0,1", "-g", "2"), "expected one of them"),
        (("--collective", "all_redcue"), "to fix: write `all_reduce`"),
        (("--calibration", "poled"), "pooled"),
    ],
)
def test_wrong_options_are_refused_by_name(capsys, args, expected):
    """With what may stand there."""
    status, _, err = run(capsys, *args)
    assert status == 2
    assert expected in " ".join(err.split())
