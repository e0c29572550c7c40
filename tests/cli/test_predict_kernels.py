"""`simrank predict-gemm` and `predict-attention`."""

import json

import pytest

import simrank
from simrank.cli import main


def run(capsys, *args):
    """Return exit status, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as caught:
        main([*args])
    out = capsys.readouterr()
    return caught.value.code or 0, out.out, out.err


def test_products_are_those_of_the_python_function(capsys, tmp_path):
    """As a table, and as JSON in a file and on stdout."""
    path = tmp_path / "rows.json"
    args = ("predict-gemm", "4096x8192x2048", "1x8192x8192", "-d", "fp8_block", "--json")
    status, table, _ = run(capsys, *args, str(path))
    assert status == 0
    found = simrank.predict_gemm("hgx_h100", 4096, 8192, 2048, dtype="fp8_block")
    rows = json.loads(path.read_text())["rows"]
    assert rows[0]["size"] == "4096x8192x2048"
    assert (rows[0]["time_us"], rows[0]["high_us"]) == (found.time_us, found.high_us)
    assert f"{found.time_us:.2f}" in table
    assert found.source in table
    status, out, _ = run(capsys, *args, "-")
    assert json.loads(out) == json.loads(path.read_text())


def test_attention_is_that_of_the_python_function(capsys):
    """With fewer heads of keys; a changed cluster."""
    args = ("--heads", "64", "--kv-heads", "8", "--batch", "16", "--phase", "decode")
    changed = ("--cluster", "hgx_h200", "--set", "device.clocks=sustained")
    status, out, _ = run(capsys, "predict-attention", "4096", *args, *changed, "--json", "-")
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
def test_wrong_options_are_refused_by_name(capsys, args, expected):
    """With what may stand there."""
    status, _, err = run(capsys, *args)
    assert status == 2
    assert expected in " ".join(err.split())
