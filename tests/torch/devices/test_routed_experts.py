"""Experts in runs without values: tokens choose them as `--routing` says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)

PROGRAMS = Path(__file__).with_name("routed_programs.py")
TOKENS = 2 * 4096  # Of all experts together.


@pytest.fixture
def loads(cli):
    """Run a layer; return the tokens of the experts of each rank, and standard error."""

    def run(kind, *options, num_ranks=1):
        words = ["--nproc-per-node", num_ranks, "--shape-only", *options]
        status, out, err = cli("run", *words, PROGRAMS, kind)
        assert status == 0, err
        found = re.findall(r"loads \[(.*)\]", "\n".join(sorted(out.splitlines())))
        return [[int(word) for word in text.split(",")] for text in found], err

    return run


@pytest.mark.parametrize("kind", ["loop", "grouped"])
def test_tokens_are_balanced(loads, kind):
    """The program is unchanged; the summary says what was assumed."""
    found, err = loads(kind, "--routing", "balanced")
    assert found == [[TOKENS // 8] * 8]
    assert "topk at routed_programs.py:23 chooses 2 of 8 experts for 4096 tokens by" in err
    assert "--routing balanced: the fullest has 1.00 times the mean, 2 times" in err


@pytest.mark.parametrize("kind", ["loop", "grouped"])
def test_tokens_follow_zipfs_law(loads, kind):
    """Each expert has its share, to one token."""
    found, err = loads(kind, "--routing", "zipf:1.2")
    weights = [(1 + expert) ** -1.2 for expert in range(8)]
    shares = [TOKENS * weight / sum(weights) for weight in weights]
    assert all(abs(load - share) <= 1 for load, share in zip(found[0], shares, strict=True))
    assert "the fullest has 3.43 times the mean" in err


def test_tokens_that_a_seed_draws_differ_by_rank_and_seed(loads):
    """And are the same in each run."""
    found = [loads("exchanged", "--routing", seed, num_ranks=2)[0] for seed in ("1", "1", "2")]
    assert found[0] == found[1] != found[2]
    assert found[0][0][0] != found[0][0][1]


def test_ranks_exchange_the_tokens_of_their_experts(loads):
    """The first has the experts with the most tokens."""
    found, _ = loads("exchanged", "--routing", "zipf:1.2", num_ranks=2)
    weights = [(1 + expert) ** -1.2 for expert in range(8)]
    first = TOKENS * sum(weights[:4]) / sum(weights)
    assert all(abs(load - first) <= 4 for load in found[0])
    assert found[0][0] + found[1][0] == TOKENS


def test_one_value_for_all_sends_every_token_to_one_expert_and_says_so(loads):
    """With the way to another routing."""
    found, err = loads("exchanged", "--unknown", "0", num_ranks=2)
    assert found == [[TOKENS, TOKENS], [0, 0]]
    assert "topk at routed_programs.py:23 has no scores: if it chooses experts, --unknown 0" in err
    assert "sends all tokens to expert 0, or to none (to fix: --routing balanced), 4 times" in err


def test_an_error_names_the_routing(cli):
    """Where nothing was stated."""
    status, _, err = cli("run", "--nproc-per-node", 1, "--shape-only", PROGRAMS, "loop")
    assert status == 1
    assert "for experts that a router chooses with --routing balanced" in err
