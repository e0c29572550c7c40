"""Clusters as ASTRA-sim's network YAML."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simrank.config.foreign.astra_sim import Dimension, dimensions_of, network_cluster
from simrank.config.yaml_source import parse_yaml
from simrank.errors import ConfigError
from simrank.formats.astra_sim import network_yaml
from simrank.hardware import load_cluster

SIZES = st.integers(2, 6)
RATES = st.integers(1, 10**6).map(lambda number: number / 1000)
DELAYS = st.integers(1, 10**6).map(lambda number: number / 1000)
INSIDE = st.one_of(
    st.builds(Dimension, st.just("Ring"), st.integers(4, 7), RATES, DELAYS),
    st.builds(Dimension, st.just("FullyConnected"), SIZES, RATES, DELAYS),
    st.builds(Dimension, st.just("Switch"), SIZES, RATES, DELAYS),
)
NETWORKS = st.tuples(INSIDE) | st.tuples(
    INSIDE, st.builds(Dimension, st.just("Switch"), SIZES, RATES, DELAYS)
)


def yaml_of(dimensions):
    kinds, *rows = (list(row) for row in zip(*dimensions, strict=True))
    rows = [f"{key}: {row}\n" for key, row in
            zip(("npus_count", "bandwidth", "latency"), rows, strict=True)]  # fmt: skip
    return f"topology: [{', '.join(kinds)}]\n{''.join(rows)}"


@settings(max_examples=20)
@given(NETWORKS)
def test_what_was_read_is_written_as_it_was(dimensions):
    """A network of one dimension, or of two with a switch outside."""
    source = parse_yaml(yaml_of(dimensions), "n.yml")
    text = network_yaml(load_cluster(network_cluster(source, "h100")))
    found = dimensions_of(parse_yaml(text, "n.yml"))
    for mine, other in zip(found, dimensions, strict=True):
        assert mine[:2] == other[:2]
        assert mine[2:] == pytest.approx(other[2:], abs=0.001)


def test_built_in_clusters_are_switches_of_switches():
    """What a route carries, and half of its latency on either side."""
    text = network_yaml(load_cluster("h100_ib"))
    inside, between = dimensions_of(parse_yaml(text, "h.yml"))
    assert inside[:2] == ("Switch", 8)
    assert inside[2:] == pytest.approx((376e9 / 2**30, 300))
    assert (between.kind, between.size) == ("Switch", 2)
    assert between[2:] == pytest.approx((47e9 / 2**30, 1350))


def test_what_the_format_has_no_words_for_is_refused():
    """Cards that devices share, and nodes that are something else."""
    with pytest.raises(ConfigError, match="l40s_pcie: expected a way out of the node for each"):
        network_yaml(load_cluster("l40s_pcie"))
    cable = {"bandwidth": "1 GB/s", "latency": "1 us"}
    data = {
        "name": "line",
        "source": "assumed",
        "device": {"like": "hgx_h100", "count": 3},
        "links": [{"between": ["gpu0", "gpu1"], **cable}, {"between": ["gpu1", "gpu2"], **cable}],
    }
    with pytest.raises(ConfigError, match="line: expected a node that is a ring, a full mesh"):
        network_yaml(load_cluster(data))
