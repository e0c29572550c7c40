"""The YAML of faults: what is refused, and with which words."""

import pytest

import simrank
from simrank.config.faults import describe, load_faults
from simrank.errors import ConfigError


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"kil": 3, "at": "1 us"}, "write `kill`"),
        ({"kill": 3}, "either at or at_collective, got neither"),
        ({"kill": 3, "at": "1 us", "at_collective": 2}, "got both"),
        ({"kill": -1, "at": "1 us"}, "a rank, a list of ranks, or all"),
        ({"kill": [], "at": "1 us"}, "a rank, a list of ranks, or all"),
        ({"kill": 8, "at": "1 us"}, "ranks below 8"),
        ({"kill": 1, "slow": 2}, "kill and slow"),
        ({"kill": 1, "at": 5}, "a time with a unit"),
        ({"kill": 1, "at_collective": 0}, "a whole number from 1"),
        ({"slow": 1, "factor": 1}, "a number above 1"),
        ({"slow": 1, "factor": True}, "a number above 1"),
        ({"slow": 1, "factor": 2, "from": "2 us", "until": "1 us"}, "a time after `from`"),
        ({"delay_arrivals": 1}, "either by or up_to"),
        ({"port_conflict": 0, "port": 0}, "a port from 1 to 65535"),
        ({"port_conflict": 0, "times": 0}, "a whole number from 1"),
        ({"deactivate": 1}, "either at or at_collective or within, got neither"),
        ({"deactivate": 1, "at": "1 us", "within": "1 us"}, "got at and within"),
        ({"delay_arrivals": 1, "by": "1 us", "probability": 2}, "above 0, at most 1"),
        ({"drop_link": "gpu3 nvswitch"}, "a link such as gpu3 -> nvswitch"),
        ({"drop_link": "gpu3 -> moon"}, "no link from gpu3 to moon"),
        ({"slow_link": "gpu3 -> nvswitch"}, "this key to be given"),
        ({"drop_link": "gpu3 -> nvswitch", "when": "1 us"}, "the unknown key `when`"),
        ("kill 3", "a mapping such as"),
    ],
)
def test_a_wrong_fault_is_refused_with_what_was_expected(fault, message):
    """Nothing starts with a fault that is not understood."""
    with pytest.raises(ConfigError, match="faults") as caught:
        simrank.Context("hgx_h100", faults=[fault])
    assert message in str(caught.value)


def test_faults_are_read_from_a_file_with_lines(tmp_path):
    """The path of a YAML file; a mistake names its line."""
    good = tmp_path / "faults.yaml"
    good.write_text("faults:\n  - {kill: [1, 2], at_collective: 2}\n")
    (fault,) = load_faults(good)
    assert (fault.ranks, fault.at_collective) == ((1, 2), 2)
    assert describe(fault) == "{kill: [1, 2], at_collective: 2}"
    bad = tmp_path / "bad.yaml"
    bad.write_text("faults:\n  - {kill: 1, at: 1 us}\n  - {slow: 1, factor: 0}\n")
    with pytest.raises(ConfigError, match=r"bad\.yaml:3: faults\[1\]\.factor"):
        simrank.Context("hgx_h100", faults=bad)


def test_what_a_cluster_has_not_is_said_with_file_and_line(tmp_path):
    """All of it, where the faults of a file meet a cluster."""
    path = tmp_path / "faults.yaml"
    path.write_text(
        "faults:\n  - {kill: 33, at: 2 ms}\n  - {slow: [1, 9], factor: 2}\n"
        '  - {kill: 3, at: 2 ms}\n  - {drop_link: "gpu9 -> nvswitch"}\n'
    )
    with pytest.raises(ConfigError) as caught:
        simrank.Context("hgx_h100", faults=path)
    said = [(problem.line, problem.key_path, problem.got) for problem in caught.value.problems]
    assert said == [
        (2, "faults[0].kill", "33"),
        (3, "faults[1].slow", "9"),
        (5, "faults[3].drop_link", "hgx_h100 has no link from gpu9 to nvswitch"),
    ]
