"""A prediction taken apart, as a page."""

import re

import pytest

from simrank.bench.crossover import crossover
from simrank.bench.explain import explain
from simrank.bench.explain_page import explain_page


def page(cluster="h100_ib", collective="all_reduce"):
    found = explain(collective, 1 << 20, cluster=cluster)
    return found, explain_page(found, crossover(collective, cluster=cluster))


def test_the_page_has_the_terms_the_curves_and_the_sources():
    """Of every candidate; the choice and the measured times have curves of their own."""
    found, text = page()
    assert text == page()[1]
    labels = re.findall("</svg>([^<]*)</label>", text)
    assert set(labels[:-2]) == {f"{each.algorithm} {each.protocol}" for each in found.options}
    assert labels[-2:] == ["NCCL's choice", "measured: h100x16_nebius_ib_allreduce"]
    for each in found.options:
        assert f"<td>{each.total:.2f}</td>" in text
    for constant in found.constants:
        assert f"<td>{constant.source}</td>" in text
    assert sum(each.share for each in found.uncertainties) == pytest.approx(1)
    for part in found.uncertainties:
        assert f"<td>{part.what}</td>" in text
    assert len(text) < 60_000


def test_the_strip_says_who_takes_over_where():
    """In order of size, and the marks are on the curve of the choice."""
    _, text = page()
    strip = re.findall(r"<title>NCCL's choice: ([^<]*)</title>", text)
    assert strip == ["tree LL", "tree LL128", "nvls_tree Simple"]
    assert text.count('class="change"') == 2


def test_a_call_that_nobody_measured_says_so():
    """The picture has the candidates alone."""
    _, text = page("hgx_h100", "broadcast")
    assert "No built-in table has this call on this cluster." in text
    assert "</svg>measured" not in text
