"""The section of a project's pyproject.toml."""

import pytest

import simrank
from simrank.config.project import CHOICES, checked_choice, project_settings
from simrank.context import Context
from simrank.errors import ConfigError


def test_private_packages_are_read_from_the_nearest_project(tmp_path, monkeypatch):
    """From a folder below it, and a Context takes them unless it is told others."""
    (tmp_path / "pyproject.toml").write_text('[tool.simrank]\nprivate = ["megatron", "mine"]\n')
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert project_settings().private == ("megatron", "mine")
    assert simrank.Context("hgx_h100").private == ("megatron", "mine")
    assert simrank.Context("hgx_h100", private=[]).private == ()


def test_a_changed_file_is_read_anew(tmp_path, monkeypatch):
    """And a project without the section has none."""
    import os

    monkeypatch.chdir(tmp_path)
    file = tmp_path / "pyproject.toml"
    file.write_text("[project]\nname = 'x'\n")
    assert project_settings().private == ()
    file.write_text('[tool.simrank]\nprivate = ["a"]\n')
    os.utime(file, ns=(1, 1))
    assert project_settings().private == ("a",)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("privat = ['a']", "got privat"),
        ("private = 'a'", "a list of names of packages"),
        ("devices = 'fake'", "one of simulated, real"),
    ],
)
def test_what_nobody_knows_is_refused(section, words, tmp_path, monkeypatch):
    """With the file, and what was expected."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(f"[tool.simrank]\n{section}\n")
    with pytest.raises(ConfigError, match=r"pyproject\.toml") as caught:
        project_settings()
    assert words in str(caught.value)


def test_a_file_that_is_no_toml_is_somebody_elses_affair(tmp_path, monkeypatch):
    """Other tools say so."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool")
    assert project_settings().private == ()


def test_a_project_says_what_cuda_means(tmp_path, monkeypatch):
    """To every Context that is not told otherwise."""
    monkeypatch.chdir(tmp_path)
    assert Context().cuda_devices is None
    (tmp_path / "pyproject.toml").write_text('[tool.simrank]\ndevices = "simulated"\n')
    assert Context().cuda_devices == "simulated"
    assert Context(cuda_devices="real").cuda_devices == "real"
    with pytest.raises(ValueError, match="choices: simulated, real"):
        Context(cuda_devices="fake")


# ---- settings that are one of a few words ----


@pytest.mark.parametrize("name", CHOICES)
def test_what_is_no_choice_is_refused_with_the_choices(name):
    """By the setting's name."""
    for word in CHOICES[name]:
        assert checked_choice(name, word) == word
    with pytest.raises(ValueError, match=f"{name}='other'; choices: {CHOICES[name][0]}"):
        checked_choice(name, "other")
