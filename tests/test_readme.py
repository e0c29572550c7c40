"""What the README shows works as shown."""

import re
from pathlib import Path

import pytest

import simrank
from simrank.errors import DeadlockError

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()


def block(language, number=0):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)[number]


def test_the_first_program_runs(capsys):
    """As printed in the README."""
    exec(block("python"), {})  # noqa: S102 - our own README
    assert re.fullmatch(r"\d+\.\d us on the simulated cluster\n", capsys.readouterr().out)


def test_the_hang_of_the_readme_is_reported_as_shown(tmp_path):
    """Rank 3 returns early; the report is the one that is shown."""
    source = block("python").replace(
        "    x = ctx.full", "    if rank == 3: return\n    x = ctx.full"
    )
    source = source.replace(
        '    dist.init_process_group("nccl")\n', "    dist.init_process_group()\n"
    )
    path = tmp_path / "train.py"
    path.write_text(source)
    with pytest.raises(DeadlockError) as caught:
        exec(compile(source, str(path), "exec"), {})  # noqa: S102 - likewise
    shown = block("text").partition("simrank.errors.DeadlockError: ")[2].strip()
    number = re.compile(r"train\.py:\d+|t=[\d.]+ us")
    assert number.sub("N", str(caught.value)) == number.sub("N", shown)


def test_the_first_yaml_is_valid(tmp_path):
    """It loads, and runs with smaller sizes."""
    path = tmp_path / "first.yaml"
    path.write_text(block("yaml", 1).replace("1 GiB", "4 KiB"))
    rows = simrank.bench.run(path)
    assert {row["num_ranks"] for row in rows} == {32}
    assert all(row["num_wrong"] == 0 for row in rows)


def test_the_faults_of_the_readme_are_valid(tmp_path):
    """They are read, and fit the cluster of the first program."""
    path = tmp_path / "faults.yaml"
    path.write_text(block("yaml", 0))
    context = simrank.Context("hgx_h100", faults=path)
    assert len(list(context.faults.unseen())) >= 4
