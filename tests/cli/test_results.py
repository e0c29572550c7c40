"""What a benchmark leaves when it is interrupted, and what it leaves alone."""

import json
import signal
import subprocess
import sys

import pytest

from simrank.bench.run import Watcher
from simrank.cli import results

BENCH = ["bench", "all_reduce", "-b", "1K", "-e", "8K", "-n", "2"]


@pytest.fixture
def ending(monkeypatch):
    """Return how to let a run end with an error at its third size."""

    def end_with(error):
        real = results.Shown.on_rows
        sizes = []

        def on_rows(shown, series, rows):
            sizes.append(rows)
            if len(sizes) == 3:
                raise error
            real(shown, series, rows)

        monkeypatch.setattr(results.Shown, "on_rows", on_rows)

    return end_with


def test_rows_are_printed_as_they_finish(cli, monkeypatch, capsys):
    """Per size: each line stands there when the next size begins."""
    printed = []
    real = results.Shown.on_progress

    def on_progress(shown, what, done, total):
        printed.append(capsys.readouterr().out.count("float32     sum"))
        real(shown, what, done, total)

    monkeypatch.setattr(results.Shown, "on_progress", on_progress)
    assert cli(*BENCH)[0] == 0
    assert sum(printed) == 3  # The fourth and last is printed after the last step.
    assert max(printed) == 1


def test_ctrl_c_keeps_finished_rows_and_gives_status_130(cli, ending, tmp_path):
    """On the screen, in JSON, CSV, the page and the timeline; all say that there is more."""
    ending(KeyboardInterrupt())
    files = [tmp_path / name for name in ("r.json", "r.csv", "t.json", "r.html")]
    options = zip(("--json", "--csv", "--trace", "--html"), files, strict=True)
    status, out, _ = cli(*BENCH, *(word for option in options for word in option))
    assert status == 130
    assert [line.split()[0] for line in out.splitlines() if line[0] != "#"] == ["1024", "2048"]
    assert out.endswith("# Partial: 4 rows, then interrupted\n")
    document = json.loads(files[0].read_text())
    assert document["partial"] == "4 rows, then interrupted"
    assert [row["size_bytes"] for row in document["rows"]] == [1024, 1024, 2048, 2048]
    *_, last_row, last = files[1].read_text().splitlines()
    assert last == "# partial: 4 rows, then interrupted"
    assert ",2048," in last_row
    assert json.loads(files[2].read_text())["traceEvents"]
    page = files[3].read_text()
    assert "Partial: 4 rows, then interrupted" in page
    assert page.count("<tr><td>") == 4


def test_an_error_keeps_finished_rows(cli, ending, tmp_path):
    """With its own status."""
    ending(OSError("no space left"))
    status, _, err = cli(*BENCH, "--json", tmp_path / "r.json")
    assert status == 1
    assert "no space left" in err
    document = json.loads((tmp_path / "r.json").read_text())
    assert len(document["rows"]) == 4
    assert document["partial"].startswith("4 rows, then ")


def test_a_complete_run_says_nothing_of_parts(cli, tmp_path):
    """The file has the promised keys."""
    status, out, _ = cli(*BENCH, "--json", tmp_path / "r.json")
    assert status == 0
    assert "Partial" not in out
    assert list(json.loads((tmp_path / "r.json").read_text())) == [
        "simrank", "seed", "cluster", "rows",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algorithms: [rign]", ":4: algorithms.rign: expected one of auto"),
        ("algorithms: {ring: {lanes: 2}}", ":4: algorithms.ring: expected options of ring"),
        ("faults: [{kill: 33, at: 1 us}]", ":4: faults[0].kill: expected ranks below 8"),
        ("faults: [{drop_link: a -> b}]", ":4: faults[0].drop_link: expected a link of hgx_h100"),
        ("algorithms: {x: {kernel: nowhere}}", ":4: algorithms.x: expected a module"),
    ],
)
def test_configuration_errors_come_before_any_output(cli, tmp_path, text, message):
    """With file and line; an earlier result is not overwritten."""
    path, result = tmp_path / "b.yaml", tmp_path / "r.json"
    path.write_text(f"cluster: hgx_h100\ncollectives: [all_reduce]\nsizes: [1 KiB]\n{text}\n")
    result.write_text("precious")
    status, out, err = cli("bench", path, "--json", result)
    assert (status, out) == (2, "")
    assert message in err
    assert result.read_text() == "precious"
    assert message in cli("check", path)[2]


def test_configuration_errors_of_a_programs_benchmark_come_before_any_output(cli, tmp_path):
    """Its program and the ranks of every combination."""
    path = tmp_path / "b.yaml"
    for program, ranks, message in (
        ("nowhere.f", "8", ":1: program: expected the name of a function"),
        ("math.pi", "8", ":1: program: expected the name of a function"),
        ("math.sqrt", "n", ":3: num_ranks: expected 1 to 8 ranks"),
    ):
        path.write_text(
            f"program: {program}\ncluster: hgx_h100\nnum_ranks: {ranks}\n"
            "parameters: {n: [98, 99]}\n"
        )
        status, out, err = cli("bench", path)
        assert (status, out) == (2, "")
        assert message in err


def test_a_watcher_may_leave_out_what_it_does_not_want():
    """By default nothing is told."""
    watcher = Watcher()
    assert watcher.on_start() is watcher.on_progress("", 0, 1) is watcher.on_rows(None, []) is None


@pytest.mark.slow
def test_a_signal_ends_a_real_run_with_status_130(tmp_path):
    """After its first row, whatever it does: what was printed is in the file."""
    path = tmp_path / "r.json"
    command = [sys.executable, "-m", "simrank.cli", "bench", "all_reduce", "-e", "256M"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, "--json", path], **pipes, text=True) as process:
        printed = [next(line for line in process.stdout if line[0] != "#")]
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate()
    printed += [line for line in rest.splitlines() if line[0] != "#"]
    assert process.returncode == 130
    assert "Traceback" not in err
    document = json.loads(path.read_text())
    assert len(document["rows"]) == 2 * len(printed) < 2 * 26
    assert document["partial"].endswith("then interrupted")
