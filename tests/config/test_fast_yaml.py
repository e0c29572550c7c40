"""Large files, read fast: the same data and the same lines as with the careful reader."""

import gc

import pytest
import yaml

from simrank.config import load_cluster_config
from simrank.config.fast_yaml import places_of, plain_data, uncollected
from simrank.config.yaml_source import parse_yaml
from simrank.errors import ConfigError
from tests.property.mutations import mutated, originals

HEAD = "name: big\nsource: assumed\ndevice: {like: hgx_h100, count: 600}\nswitches: [s0..511]\n"
LINK = "  - {{between: [gpu{0}, s{1}], bandwidth: 1 GB/s, latency: 1 us}}\n"


@pytest.fixture
def large(tmp_path):
    """Write a cluster with a link per pair of a device and a switch; returns its file."""

    def write(num_devices, last_line=""):
        links = (LINK.format(gpu, switch) for gpu in range(num_devices) for switch in range(512))
        path = tmp_path / "large.yaml"
        path.write_text(f"{HEAD}links:\n{''.join(links)}{last_line}")
        return path

    return write


def test_data_and_places_are_those_of_the_careful_reader():
    """For every good file, whatever is in it."""
    for text in originals():
        source = parse_yaml(text, "good.yaml")
        assert plain_data(text, 100) == source.data
        places = places_of(text)
        assert places.lines == source.lines
        assert places.texts == source.texts


def test_what_needs_a_closer_look_is_left_to_the_careful_reader():
    """Mutated files: never other data than its, and never data where it refuses."""
    num_equal = 0
    for number in range(120):
        text = mutated(number)
        try:
            data = plain_data(text, 100)
        except yaml.YAMLError:
            data = None
        if isinstance(data, dict):
            num_equal += 1
            assert data == parse_yaml(text, "mutated.yaml").data
    assert num_equal > 20


@pytest.mark.parametrize(
    "text",
    [
        "a: &b 1\n",
        "a: !!str 1\n",
        "a: 1\na: 2\n",
        "<<: {}\n",
        "[a]: 1\n",
        "a: 1\n---\nb: 2\n",
        "a: b\tc\n",
        "",
    ],
)
def test_anchors_tags_and_odd_keys_are_not_taken(text):
    """They are the careful reader's."""
    assert plain_data(text, 100) is None


def test_deep_nesting_is_refused_with_its_line():
    """As everywhere."""
    with pytest.raises(yaml.MarkedYAMLError) as caught:
        plain_data("a: 1\nb: " + "[" * 5000 + "]" * 5000, 100)
    assert caught.value.problem_mark.line == 1


def test_the_collector_is_as_it_was():
    """Also where it was off."""
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.slow
def test_300_000_links_load(large):
    """As a list of all of them."""
    config = load_cluster_config(large(600))
    assert len(config.links) == 600 * 512


@pytest.mark.slow
@pytest.mark.parametrize(
    ("last_line", "message"),
    [
        (
            "  - {between: [gpu599, s0], bandwidth: 1 GBps, latency: 1 us}\n",
            "large.yaml:20486: links[20480].bandwidth: expected a rate with a unit, got 1 GBps",
        ),
        ("name: again\n", "large.yaml:20486: name: expected each key once"),
        ("  - {between: [gpu599, s0], bandwidth: 1\n", "large.yaml:20487: expected valid YAML"),
        ("more: " + "[" * 200 + "]" * 200 + "\n", "large.yaml:20486: expected valid YAML"),
    ],
)
def test_what_is_wrong_in_a_large_file_has_its_line(large, last_line, message):
    """Whichever reader finds it."""
    path = large(40, last_line)
    assert path.stat().st_size > 1_000_000
    with pytest.raises(ConfigError) as caught:
        load_cluster_config(path)
    assert message in str(caught.value)
