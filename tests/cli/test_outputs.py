"""`--tee`, `--redirects`, `--log-dir` and `--local-ranks-filter`: as torchrun's."""

import pytest

from simrank.cli import run as run_command
from simrank.cli.run import Logs


@pytest.fixture
def run(cli, tmp_path):
    """Run a script that writes to both streams; returns status, stdout, stderr."""
    script = tmp_path / "says.py"
    script.write_text("import sys\nprint('out')\nprint('err', file=sys.stderr)\n")

    def run_says(*options):
        return cli("run", "--summary", "none", "--nproc-per-node", 2, *options, script)

    return run_says


OUT, ERR = "[rank0]: out\n[rank1]: out\n", "[rank0]: err\n[rank1]: err\n"
FILES = {f"{rank}/std{name}.log": f"{name}\n" for rank in "01" for name in ("out", "err")}


def written(folder):
    """Return the text of every file of a folder, by its path there."""
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("options", [[], ["--tee", "3"]])
def test_a_folder_gets_the_lines_of_each_rank_without_prefix(run, tmp_path, options):
    """Both streams, shown too; a folder alone means that; it may be there already."""
    folder = tmp_path / "logs"
    for _ in range(2):
        assert run("--log-dir", folder, *options) == (0, OUT, ERR)
        assert written(folder) == FILES


def test_what_is_redirected_is_not_shown(run, tmp_path):
    """By stream, and by rank."""
    folder = tmp_path / "logs"
    assert run("--log_dir", folder, "-r", "1") == (0, "", ERR)
    assert written(folder) == {name: text for name, text in FILES.items() if "out" in name}
    some = tmp_path / "some"
    assert run("--log-dir", some, "-r", "0:3", "-t", "1:2") == (0, OUT[13:], ERR[13:])
    assert set(written(some)) == {"0/stdout.log", "0/stderr.log", "1/stderr.log"}


def test_without_a_folder_one_is_made_and_named(run, tmp_path, monkeypatch):
    """As torchrun makes one."""
    monkeypatch.setattr(run_command.tempfile, "mkdtemp", lambda prefix: str(tmp_path / prefix))
    status, out, err = run("-t", "3")
    assert (status, out) == (0, OUT)
    assert err == f"simrank: logs of ranks are in {tmp_path}/simrank_\n{ERR}"
    assert written(tmp_path / "simrank_") == FILES


def test_only_some_ranks_may_be_shown(run, tmp_path):
    """Their logs are whole."""
    folder = tmp_path / "logs"
    options = ["--local-ranks-filter", "1", "--log-dir", folder]
    assert run(*options) == (0, OUT[13:], ERR[13:])
    assert written(folder) == FILES


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tee", "4"], "--tee: expected 0 none, 1 stdout, 2 stderr or 3 both"),
        (["-r", "0:1,x"], "--redirects: expected 0 none"),
        (["--local-ranks-filter", "all"], "--local-ranks-filter: expected ranks such as 0,8"),
        (["--log-dir", __file__], "--log-dir: expected a folder that can be made"),
    ],
)
def test_what_is_written_wrongly_is_bad_usage(run, options, message):
    """Before anything runs."""
    status, out, err = run(*options)
    assert (status, out) == (2, "")
    assert message in err


def test_more_ranks_than_files_may_be_open_have_whole_logs(tmp_path, monkeypatch):
    """Files that were closed meanwhile go on where they ended."""
    monkeypatch.setattr(run_command, "_MAX_OPEN", 2)
    logs = Logs(tmp_path)
    for turn in range(2):
        for rank in range(4):
            logs.file(rank, "stdout").write(f"{turn}\n")
    logs.close()
    assert written(tmp_path) == {f"{rank}/stdout.log": "0\n1\n" for rank in range(4)}
