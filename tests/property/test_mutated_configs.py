"""Configurations with slips in them load, or say in which file and line they are wrong."""

import re

import pytest

from simrank.bench.series import series_of
from simrank.config import check_file, load_bench_config
from simrank.errors import ConfigError

from .mutations import mutated, originals

WHERE = re.compile(r"\S+\.(yaml|csv):\d+: ")


def outcome(path):
    """Return what is said of a file: what it is, or what is wrong with it."""
    try:
        said = check_file(path)
        if said.startswith("benchmark of") and not said.startswith("benchmark of program"):
            list(series_of(load_bench_config(path)))
    except ConfigError as error:
        return error
    return said


def look_at(tmp_path, numbers):
    """Look at mutated files; returns how many of them load."""
    num_good = 0
    for number in numbers:
        path = tmp_path / "mutated.yaml"
        path.write_bytes(mutated(number).encode("utf-8", "surrogatepass"))
        said = outcome(path)
        num_good += isinstance(said, str)
        for problem in getattr(said, "problems", ()):
            text = str(problem)
            assert WHERE.match(text), f"seed {number}: {text}"
            assert " expected " in text, f"seed {number}: {text}"
            assert text.replace("\n  to fix", "").isprintable(), f"seed {number}: {text!r}"
            assert len(text) < 3000, f"seed {number}: {text}"
    return num_good


def test_some_mutated_files_load_or_say_where_they_are_wrong(tmp_path):
    """A sample; what does not end as a ConfigError fails with its own traceback."""
    num_good = look_at(tmp_path, range(60))
    assert 0 < num_good < 60


@pytest.mark.slow
def test_thousands_of_mutated_files_load_or_say_where_they_are_wrong(tmp_path):
    """The seed of each is its number: `mutated(number)` is the file."""
    num_good = look_at(tmp_path, range(60, 4060))
    assert 400 < num_good < 3600


def test_the_files_before_their_mutation_load(tmp_path):
    """Else what is found would not be the slip."""
    path = tmp_path / "good.yaml"
    for text in originals():
        if "program:" in text or "kernel:" in text or "measured" in text:
            continue  # These name files that lie beside them.
        path.write_text(text, encoding="utf-8")
        assert isinstance(outcome(path), str)
