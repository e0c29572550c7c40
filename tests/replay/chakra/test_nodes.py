"""What both forms of a Chakra trace hold."""

import pytest

from simrank.errors import ConfigError
from simrank.replay.chakra.nodes import RawNode, check_version

NODE = RawNode("f.et", 3, 7, "x", "COMP_NODE", (), 0, {"a": 5, "b": "12", "c": -1, "d": "no"})


def test_attributes_are_whole_numbers_within_bounds():
    """Or texts of them, as some tools write."""
    assert (NODE.whole("a", 0, 9), NODE.whole("b", 0, 99)) == (5, 12)
    assert NODE.whole("missing", 0, 9, default=4) == 4
    for key in ("c", "d", "missing"):
        with pytest.raises(ConfigError, match=rf"f.et:3: node 7.{key}: expected a whole number"):
            NODE.whole(key, 0, 9)


def test_only_a_known_schema_is_read():
    """As a version, or at the end of what PyTorch's converter writes."""
    check_version("0.0.4", "", "f", None)
    check_version("", "1.0.2-chakra.0.0.4", "f", None)
    for version, schema, got in (("0.0.5", "", "0.0.5"), ("", "1.1.1-chakra.0.0.3", "0.0.3")):
        with pytest.raises(
            ConfigError, match=f"version: expected Chakra's schema 0.0.4, got {got}"
        ):
            check_version(version, schema, "f", None)
    with pytest.raises(ConfigError, match="got nothing"):
        check_version("", "", "f", None)
