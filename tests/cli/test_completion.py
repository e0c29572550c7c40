"""What shells complete."""

import pytest


@pytest.fixture
def completed(cli, monkeypatch):
    def complete(*words):
        monkeypatch.setenv("_SIMRANK_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["simrank", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        status, out, err = cli()
        assert (status, err) == (0, "")
        return out.split()

    return complete


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "--on-f"], ["--on-failure"]),
        (["run", "--on-failure", ""], ["abort", "continue"]),
        (["run", "--cluster", "hgx_h"], ["hgx_h100", "hgx_h20", "hgx_h200"]),
        (["bench", "all_reduce", "--algorithm", "ha"], ["halving_doubling"]),
        (["explain", "--calibration", "no"], ["none"]),
        (["kernels", "c"], ["coverage", "check"]),
        (["kernels", "check", "--clu"], ["--cluster"]),
        (["torch", ""], ["build"]),
        (["run", "--rdzv-b"], []),
        (["run", "--log-dir", "/tm"], []),
    ],
)
def test_options_and_their_words_are_completed(completed, words, expected):
    """What is hidden is not; where nothing is offered, shells complete names of files."""
    assert sorted(completed(*words)) == sorted(expected)
