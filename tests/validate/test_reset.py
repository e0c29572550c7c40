"""The state that every case starts from."""

from __future__ import annotations

import os
import random
import sys

import numpy as np

from simrank.validate.reset import Baseline


def test_environment_folder_arguments_and_seeds_are_restored(monkeypatch, tmp_path):
    """Whatever a case did to them."""
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["program"])
    baseline = Baseline()
    baseline.restore()
    drawn = random.random(), np.random.rand()
    monkeypatch.delenv("KEPT")
    monkeypatch.setenv("ADDED", "1")
    os.chdir("/")
    sys.argv.append("more")
    baseline.restore()
    assert (os.environ["KEPT"], os.environ.get("ADDED")) == ("1", None)
    assert os.getcwd() == str(tmp_path)
    assert sys.argv == ["program"]
    assert (random.random(), np.random.rand()) == drawn


def test_a_folder_that_is_gone_is_passed_over(monkeypatch, tmp_path):
    """The case that needs it says so."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    baseline = Baseline()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").rmdir()
    baseline.restore()
    assert os.getcwd() == str(tmp_path)
