"""`simrank calibrate`: constants from measured times."""

import io

import pytest
import yaml

from simrank.cli import main
from simrank.collectives.nccl import Communicator, GroupShape
from simrank.collectives.nccl.evidence import constants_on
from simrank.collectives.nccl.machine import spec_of
from simrank.hardware import load_cluster

LINES = "# all_reduce_perf\n  1024  256  float  sum  -1  45.0  0.02  0.04  0  45.0  0.02  0.04  0\n"


def run(capsys, *args):
    with pytest.raises(SystemExit) as caught:
        main(["calibrate", *args])
    return caught.value.code, *capsys.readouterr()


def test_a_file_is_written_and_what_is_left_is_shown(capsys, tmp_path):
    """Per table and class of size."""
    out_file = tmp_path / "mine.yaml"
    status, out, _ = run(
        capsys, "h100x8_aws_p5_allreduce", "--library", "NCCL 2.28", "--out", str(out_file)
    )
    assert status == 0
    assert out.startswith("residual errors")
    data = yaml.safe_load(out_file.read_text())
    assert (data["cluster"], data["library"]) == ("hgx_h100", "NCCL 2.28")
    assert len(data["residuals"]) == 4


def test_a_site_takes_one_pasted_size(capsys, monkeypatch):
    """From standard input: what it does not tell stays as pooled constants have it."""
    monkeypatch.setattr("sys.stdin", io.StringIO(LINES))
    status, out, _ = run(capsys, "-", "--cluster", "h100_ib", "-g", "16", "--site")
    assert status == 0
    data = yaml.safe_load(out[out.index("cluster:") :])
    assert data["source"] == "fitted to standard input"
    cluster = load_cluster("h100_ib")
    shape = GroupShape.packed(16, 8)
    comm = Communicator(shape, spec_of(cluster, shape))
    pooled = constants_on(cluster, "all_reduce", comm).calibration
    assert data["constants"]["launch_us"] > pooled.launch_us
    assert data["constants"]["bandwidth_intra"] == pytest.approx(pooled.bandwidth_intra, rel=0.02)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nope.csv"], "nope.csv"),
        (["xla_h100x8"], "loops of xla"),
        (["h100x8_aws_p5_allreduce", "a100x8_stas_allreduce"], "of one cluster"),
        (["-", "-g", "8"], "name it with --cluster"),
    ],
)
def test_bad_usage_says_what_is_wrong(capsys, monkeypatch, args, message):
    """Exit status 2."""
    monkeypatch.setattr("sys.stdin", io.StringIO(LINES))
    status, _, err = run(capsys, *args)
    assert status == 2
    assert message in " ".join("".join(c if c.isascii() else " " for c in err).split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "name measured tables"),
        (("--pool",), "name the first with --out"),
        (("--pool", "--site"), "tables and --out alone"),
    ],
)
def test_a_fit_without_tables_or_a_place_for_a_pool_is_refused(capsys, options, message):
    """With the option that is missing."""
    status, _, err = run(capsys, *options)
    assert status == 2
    assert message in err


@pytest.mark.slow
def test_a_pool_shows_how_left_out_sites_are_predicted(capsys, tmp_path, monkeypatch):
    """By kind of group and class of size; three files are written."""
    names = ["h100x8_aws_p5_allreduce", "b200x8_vultr_allreduce", "h100x16_nebius_ib_allreduce"]
    monkeypatch.setattr("simrank.cli.calibrate.builtin_tables", lambda: names)
    monkeypatch.setattr("simrank.cli.calibrate.pooled_tables", list)
    status, out, _ = run(capsys, "--pool", "--out", str(tmp_path / "pool.json"))
    assert status == 0
    assert out.splitlines()[0].split()[:4] == ["left-out", "sites", "sizes", "sites"]
    assert "fitted to 3 series of 3 sites" in out
    assert "one node, platform or group unseen" in out
    assert "several nodes, network unseen" in out
    assert (tmp_path / "pool.npy").is_file()
    left_out = (tmp_path / "pool.jsonl").read_text().splitlines()
    assert len(left_out) == 3
    assert all("fitted to 2 series of 2 sites" in line for line in left_out)


def test_a_table_is_not_written_over(capsys, tmp_path):
    """Nor is its machine file; a doubt is printed."""
    table = tmp_path / "log.txt"
    table.write_text(LINES.replace("45.0", "45000"))
    options = (str(table), "--cluster", "hgx_h100", "-g", "8", "--out")
    for name in ("log.txt", "log.yaml"):
        status, _, err = run(capsys, *options, str(tmp_path / name))
        assert status == 2
        assert "--out: expected another" in err
    assert table.read_text().startswith("# all_reduce_perf")
    status, _, err = run(capsys, *options, str(tmp_path / "mine.yaml"))
    assert status == 0
    assert "warning: " in err
    assert "1 KiB took 45000 us" in err


def test_a_pool_is_json_with_an_array_beside_it(capsys, tmp_path):
    """Both are looked at before the fit."""
    (tmp_path / "pool.npy").mkdir()
    for name, message in (("pool.yaml", "--out FILE.json"), ("pool.json", "got a folder")):
        status, _, err = run(capsys, "--pool", "--out", str(tmp_path / name))
        assert status == 2
        assert message in err
