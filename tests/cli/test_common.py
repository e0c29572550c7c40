"""What the commands share: exit statuses, version, help, options that are checked."""

import pytest

FAST = ["-b", "1K", "-e", "4K", "-n", "2"]


@pytest.mark.parametrize(
    "args",
    [
        ["bench", "no_such_thing"],
        ["bench", "all_reduce", "-b", "8X"],
        ["bench", "all_reduce", "--cluster", "nowhere"],
        ["bench", "all_reduce", "-d", "float99"],
        ["bench", "all_reduce", "-o", "median"],
        ["bench", "all_reduce", "--algorithm", "rign"],
        ["bench", "all_reduce", "-g", "9"],
        ["bench", "all_reduce", "--trace-ranks", "a", "--trace", "x.json"],
        ["bench", "all_reduce", "-f", "1"],
        ["check", "no_such_file.yaml"],
        ["frobnicate"],
        ["bench"],
    ],
)
def test_bad_usage_gives_status_2_and_one_message(cli, args):
    """Whatever is wrong on the command line."""
    status, out, err = cli(*args)
    assert status == 2
    assert err
    assert "Traceback" not in out + err


def test_a_result_file_that_cannot_be_written_is_an_error_before_the_run(cli, tmp_path):
    """Nothing is lost: the benchmark has not run yet."""
    path = tmp_path / "missing" / "r.json"
    status, out, err = cli("bench", "all_reduce", *FAST, "--json", path)
    assert status == 2
    assert str(path) in err
    assert "# Out of bounds" not in out


def test_version_and_help(cli):
    """Both end with success."""
    assert cli("--version")[1].startswith("simrank 0.")
    assert "exit status" in cli("bench", "--help")[1]


def test_a_bug_of_ours_has_its_own_status(cli, monkeypatch):
    """3, with the traceback and a word on whose fault it is."""
    monkeypatch.setattr("simrank.cli.configs.builtin_clusters", lambda: 1 / 0)
    status, _, err = cli("clusters")
    assert status == 3
    assert "ZeroDivisionError" in err
    assert "bug in simrank" in err
