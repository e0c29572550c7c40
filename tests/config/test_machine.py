"""On what a table was measured, said beside it."""

import pytest

from simrank.config.load import load_cluster_config
from simrank.config.locate import builtin_names, locate
from simrank.config.machine import load_machine
from simrank.config.measured import load_measured
from simrank.errors import ConfigError


@pytest.mark.parametrize("name", builtin_names("measured"))
def test_every_shipped_table_says_where_it_was_measured(name):
    """A built-in cluster with enough devices, and the ranks of its rows."""
    path = locate("measured", name)
    machine = load_machine(path)
    cluster = load_cluster_config(machine.cluster, machine.nodes if machine.nodes > 1 else None)
    ranks = {row.num_ranks for row in load_measured(path)}
    assert max(ranks) <= cluster.num_devices
    assert machine.num_ranks is None or ranks == {machine.num_ranks}


def test_a_table_may_stand_alone(tmp_path):
    """Then whoever reads it has to say."""
    assert load_machine(tmp_path / "table.csv") is None


def test_every_wrong_key_is_named_with_its_line(tmp_path):
    """As in every configuration."""
    (tmp_path / "table.yaml").write_text("cluster: h100_ib\nnodes: 0\nlibrary: NCCL\nmode: loop\n")
    with pytest.raises(ConfigError) as caught:
        load_machine(tmp_path / "table.csv")
    assert [problem.line for problem in caught.value.problems] == [2, 4]
    assert "one of back_to_back, torch, xla" in str(caught.value)
