"""Names and paths."""

import pytest

from simrank.config import builtin_clusters, configs_dir
from simrank.config.locate import locate
from simrank.errors import ConfigError


def test_the_promised_clusters_are_built_in():
    """The names that documentation and benchmarks rely on."""
    assert builtin_clusters() == [
        "a100_efa",
        "a100_ib",
        "a100_roce",
        "b200_efa",
        "b200_ib",
        "b200_roce",
        "b300_efa",
        "b300_ib",
        "gb200_ib",
        "gb200_nvl72",
        "gb200_roce",
        "gb300_ib",
        "gb300_nvl72",
        "gb300_roce",
        "gh200_slingshot",
        "h100_efa",
        "h100_ib",
        "h100_sharp",
        "h100_single_ib",
        "h100_tcpx",
        "h100_tcpxo",
        "h200_efa",
        "h200_ib",
        "h200_roce",
        "hgx_a100",
        "hgx_b200",
        "hgx_b300",
        "hgx_h100",
        "hgx_h20",
        "hgx_h200",
        "l40s_8_roce",
        "l40s_pcie",
        "mi300x",
        "mi300x_roce",
        "mi355x",
        "mi355x_roce",
        "rtx_4090_pcie",
        "rtx_pro_6000_pcie",
        "rtx_pro_6000_roce",
    ]


def test_a_built_in_name_needs_no_path(monkeypatch, tmp_path):
    """From any folder."""
    monkeypatch.chdir(tmp_path)

    assert locate("clusters", "hgx_h100") == configs_dir() / "clusters" / "hgx_h100.yaml"


def test_a_word_that_is_a_file_is_that_file(monkeypatch, tmp_path):
    """With or without a suffix; `./` insists on the file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("")

    assert locate("clusters", "mine").name == "mine"
    assert locate("clusters", "./hgx_h100").parent == (tmp_path / ".").relative_to(tmp_path)


def test_an_unknown_name_lists_the_known_ones():
    """And suggests the closest."""
    with pytest.raises(ConfigError) as caught:
        locate("clusters", "hgx_h10")
    (problem,) = caught.value.problems

    assert problem.expected.startswith("a file or one of hgx_h100, a100_efa, a100_ib")
    assert problem.to_fix == "write `hgx_h100`"
