"""A prediction taken apart is the prediction."""

import re
from pathlib import Path

import numpy as np
import pytest

import simrank
from simrank.config.locate import locate
from simrank.config.measured import load_measured
from simrank.planning.explain import SIZES_BYTES, crossover, explain, explain_page


@pytest.mark.parametrize(
    "collective", ["all_reduce", "all_gather", "broadcast", "all_to_all", "sendrecv"]
)
@pytest.mark.parametrize(("cluster", "nodes"), [("hgx_h100", None), ("h100_ib", 2), ("h100_ib", 8)])
@pytest.mark.parametrize("size", [8, 1 << 20, 1 << 30])
def test_the_terms_of_the_first_option_add_up_to_the_prediction(collective, cluster, nodes, size):
    """And it is the fastest, or its estimate is the least."""
    found = explain(collective, size, cluster=cluster, nodes=nodes)
    predicted = simrank.predict(collective, size, cluster=cluster, nodes=nodes)
    best = found.options[0]
    assert best.total == pytest.approx(predicted.time_us[0])
    assert (best.algorithm, best.protocol) == (predicted.algorithm[0], predicted.protocol[0])
    assert found.busbw_GBps == pytest.approx(predicted.busbw_GBps[0])
    least = "total" if found.takes_fastest else "estimate"
    assert getattr(best, least) == min(getattr(option, least) for option in found.options)


def test_what_a_tuner_file_asks_for_is_what_is_predicted(tmp_path):
    """The terms are those of what is taken, not of what NCCL would take."""
    path = tmp_path / "tuner.csv"
    path.write_text("allreduce,0,1073741824,ring,ll128,0,-1,-1\n")
    found = explain("all_reduce", 1 << 20, cluster="h100_ib", nccl_tuner=path)
    predicted = simrank.predict("all_reduce", 1 << 20, cluster="h100_ib", nccl_tuner=path)
    assert found.reason == f"set by {path}:1"
    assert found.options[0].total == pytest.approx(predicted.time_us[0])
    assert (predicted.algorithm[0], predicted.protocol[0]) == ("ring", "LL128")


def test_every_number_has_a_source():
    """Or says that it is assumed."""
    for cluster in ("hgx_h100", "h100_ib", "l40s_pcie", "mi300x"):
        for collective in ("all_reduce", "all_to_all"):
            for constant in explain(collective, 1 << 20, cluster=cluster).constants:
                assert constant.source, constant


def test_one_rank_has_nothing_to_explain():
    """It would be a copy."""
    with pytest.raises(ValueError, match="expected 2 to 8"):
        explain("all_reduce", 8, 1)


def test_what_nccls_graph_knows_stands_instead_of_what_the_cluster_says():
    """And is shown beside it; the constants are those of its platform."""
    graph = Path(__file__).parent.parent / "config" / "foreign" / "nccl" / "ncv4_graph.xml"
    found = explain("all_reduce", 1 << 20, 4, "hgx_a100", nccl_graph=graph)
    replaced = {each.key: (each.value, each.before) for each in found.replaced}
    assert replaced["ring_bandwidth"] == ("24 GB/s", "235 GB/s")
    assert replaced["channels"] == ("4", "24")
    assert replaced["wire"] == ("pci", "nvlink")
    assert "over 24 GB/s" in found.volume or "over 12 GB/s" in found.volume
    assert "platform pcie" in found.rests_on
    assert explain("all_reduce", 1 << 20, 4, "hgx_a100").replaced == ()


def test_the_parts_of_the_interval_add_up_and_say_what_is_assumed_or_unknown():
    """An assumed rate of network cards is a part of its own; so is what no table tells."""
    found = explain("all_reduce", 1 << 30, cluster="mi355x_roce")
    parts = {each.what: each for each in found.uncertainties}
    assert "nic_bandwidth is assumed" in parts
    assert sum(each.share for each in found.uncertainties) == pytest.approx(1)
    whole = 1.645 * np.sqrt(sum((np.log1p(e.half_width) / 1.645) ** 2 for e in found.uncertainties))
    assert np.log1p(found.spread) == pytest.approx(whole)
    unseen = explain("broadcast", 1 << 20, cluster="hgx_h100")
    assert any(each.what.startswith("operation broadcast") for each in unseen.uncertainties)


# ---- which algorithm and protocol takes over from which, over size ----


@pytest.mark.parametrize("cluster", ["hgx_h100", "h100_ib", "h100_efa", "l40s_pcie"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all"])
def test_what_is_chosen_is_what_is_predicted(cluster, collective):
    """Each size takes a candidate whose time is the prediction."""
    found = crossover(collective, cluster=cluster)
    predicted = simrank.predict(collective, list(SIZES_BYTES), cluster=cluster)
    for column, index in enumerate(found.chosen):
        assert found.choices[index] == (predicted.algorithm[column], predicted.protocol[column])
        assert found.times_us[index, column] == pytest.approx(predicted.time_us[column])
    assert predicted.time_us * (1 + found.spread) == pytest.approx(predicted.high_us)


def test_a_table_of_the_same_call_stands_beside_it():
    """The same cluster, collective, ranks and nodes; of loops there is none."""
    (found,) = crossover("all_reduce", cluster="h100_ib").measured
    assert found.table == "h100x16_nebius_ib_allreduce"
    assert found.size_bytes.min() >= SIZES_BYTES[0]
    assert [each.table for each in crossover("all_reduce").measured] == ["h100x8_aws_p5_allreduce"]
    for collective, num_ranks, nodes in (
        ("all_gather", None, None),
        ("all_reduce", 8, None),
        ("all_reduce", None, 4),
    ):
        assert not crossover(collective, num_ranks, "h100_ib", nodes=nodes).measured


# ---- a prediction taken apart, as a page ----


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
    (row, *_) = load_measured(locate("measured", "h100x16_nebius_ib_allreduce"))
    said = f"Measured: h100x16_nebius_ib_allreduce ({row.system}, {row.source}). Mean"
    assert said in text
    assert "with site 'nebius h100' left out of the calibration 12 % up to 32 KiB" in text
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


def test_a_call_without_measurements_says_so():
    """The picture has the candidates alone."""
    _, text = page("hgx_h100", "broadcast")
    assert "No built-in table has this call on this cluster." in text
    assert "</svg>measured" not in text


def test_the_predicted_time_stands_beside_the_name():
    """A narrow screen shows it, without scrolling the table."""
    columns = re.findall(r'<th scope="col">([^<]*)</th>', page()[1])
    assert columns[:3] == ["algorithm, protocol", "time (us)", "NCCL's estimate (us)"]
