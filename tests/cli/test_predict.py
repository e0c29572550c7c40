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
        (("all_gather",), "to fix: write --collective all_gather"),
        (("--cluster", "h100"), "to fix: write `h100_ib` or `hgx_h100` or `h100_efa`"),
    ],
)
def test_wrong_options_are_refused_by_name(capsys, args, expected):
    """With what may stand there."""
    status, _, err = run(capsys, *args)
    assert status == 2
    assert expected in " ".join(err.split())


# ---- `simrank predict-gemm` and `predict-attention` ----


def run_kernels(capsys, *args):
    """Return exit status, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as caught:
        main([*args])
    out = capsys.readouterr()
    return caught.value.code or 0, out.out, out.err


def test_products_are_those_of_the_python_function(capsys, tmp_path):
    """As a table, and as JSON in a file and on stdout."""
    path = tmp_path / "rows.json"
    args = ("predict-gemm", "4096x8192x2048", "1x8192x8192", "-d", "fp8_block", "--json")
    status, table, _ = run_kernels(capsys, *args, str(path))
    assert status == 0
    found = simrank.predict_gemm("hgx_h100", 4096, 8192, 2048, dtype="fp8_block")
    rows = json.loads(path.read_text())["rows"]
    assert rows[0]["size"] == "4096x8192x2048"
    assert (rows[0]["time_us"], rows[0]["high_us"]) == (found.time_us, found.high_us)
    assert f"{found.time_us:.2f}" in table
    assert found.source in table
    status, out, _ = run_kernels(capsys, *args, "-")
    assert json.loads(out) == json.loads(path.read_text())


def test_attention_is_that_of_the_python_function(capsys):
    """With fewer heads of keys; a changed cluster."""
    args = ("--heads", "64", "--kv-heads", "8", "--batch", "16", "--phase", "decode")
    changed = ("--cluster", "hgx_h200", "--set", "device.clocks=sustained")
    status, out, _ = run_kernels(
        capsys, "predict-attention", "4096", *args, *changed, "--json", "-"
    )
    assert status == 0
    (row,) = json.loads(out)["rows"]
    cluster = {"name": "hgx_h200", "device": {"clocks": "sustained"}}
    found = simrank.predict_attention(cluster, 64, 128, 4096, 16, kv_heads=8, phase="decode")
    assert row["time_us"] == found.time_us


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("predict-gemm", "4096x4096"), "MxNxK: expected three sizes such as 4096x8192x8192"),
        (("predict-gemm", "4096x4096x0"), "k=0: expected a whole number from 1"),
        (("predict-gemm", "1x1x1", "-d", "bf16"), "dtype='bf16': expected one of bfloat16"),
        (("predict-attention", "64", "--phase", "decod"), "write `decode`"),
        (("predict-attention", "64", "--cluster", "mi300x"), "attention on MI300X: none was"),
        (("predict-gemm", "1x1x1", "--set", "device.clocks=sustained", "--cluster", "hgx_h20"),
         "state it; none is known for H20 SXM"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_of_kernels_by_name(capsys, args, expected):
    """With what may stand there."""
    status, _, err = run_kernels(capsys, *args)
    assert status == 2
    assert expected in " ".join(err.split())
