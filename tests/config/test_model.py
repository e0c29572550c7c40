"""Whatever stands in a file, the answer is a configuration or a ConfigError."""

import copy

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from simrank.config import bench_config_from_mapping, configs_dir, load_cluster_config
from simrank.config.yaml_source import parse_yaml
from simrank.errors import ConfigError

CLUSTER = yaml.safe_load((configs_dir() / "clusters" / "h100_ib.yaml").read_text())
BENCH = {
    "cluster": {"name": "h100_ib", "nodes": 2},
    "num_ranks": [2, 4],
    "collectives": ["all_reduce"],
    "algorithms": {"ring": {"channels": 1}},
    "dtypes": ["float32"],
    "redops": ["sum"],
    "root": 0,
    "sizes": {"from": "8 B", "to": "1 KiB", "factor": 2},
    "iterations": {"warmup": 1, "timed": 2},
    "in_place": "both",
    "measured": ["h100x16_nebius_ib_allreduce"],
    "check": True,
    "seed": 0,
}

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-5, 10)
    | st.sampled_from([2**70, -1.5, float("nan"), float("inf")])
    | st.sampled_from(["", " ", "gpu0", "nic0..7", "each gpu", "same rail", "450", "1 GB/s"])
    | st.sampled_from(["-1 us", "1 us", "1e99 B", "8 B", "both", "auto", ".", "/", "\x00", "a..b"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "from", "source", "x"]), inner, max_size=2)
    ),
    max_leaves=6,
)


def key_paths(data, path=()):
    """Return the key path of every part of some data."""
    found = [path] if path else []
    if isinstance(data, dict | list):
        children = data.items() if isinstance(data, dict) else enumerate(data)
        for key, child in children:
            found += key_paths(child, (*path, key))
    return found


def changed(data, path, value, what):
    """Return a copy in which one part is replaced, removed, or has a neighbour."""
    data = copy.deepcopy(data)
    parent = data
    for part in path[:-1]:
        parent = parent[part]
    if what == "replace":
        parent[path[-1]] = value
    elif what == "remove":
        del parent[path[-1]]
    elif isinstance(parent, list):
        parent.append(value)
    else:
        parent["extra"] = value
    return data


def problems_of(load, data):
    """Return what is wrong with some data, or None if it is read."""
    try:
        load(data)
    except ConfigError as error:
        return error.problems
    return None


@pytest.mark.parametrize(
    ("load", "good"), [(load_cluster_config, CLUSTER), (bench_config_from_mapping, BENCH)]
)
@given(data=st.data())
@settings(max_examples=60)
def test_a_changed_configuration_is_read_or_refused(load, good, data):
    """No other exception escapes, and every problem has words."""
    path = data.draw(st.sampled_from(key_paths(good)))
    what = data.draw(st.sampled_from(["replace", "remove", "add"]))
    problems = problems_of(load, changed(good, path, data.draw(values), what))

    assert problems is None or all(problem.expected and problem.got for problem in problems)


@given(text=st.text(max_size=60) | st.text("{}[]:,-#&*!|>'\"%@ab1 \n", max_size=60))
def test_any_text_is_yaml_or_a_config_error(text):
    """PyYAML's own exceptions do not escape."""
    assert problems_of(lambda text: parse_yaml(text, "a.yaml"), text) != ()
