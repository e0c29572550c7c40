"""`simrank check` and `simrank clusters`."""

from pathlib import Path

import pytest

from tests.quick import slow_after

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted((ROOT / "configs").glob("*/*.yaml"))
FIRST_OF_FOLDER = [
    path for number, path in enumerate(SHIPPED) if path.parent != SHIPPED[number - 1].parent
]


@pytest.mark.parametrize(
    "path",
    [*FIRST_OF_FOLDER, *slow_after(0, [path for path in SHIPPED if path not in FIRST_OF_FOLDER])],
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_check_says_what_a_good_file_is(cli, path):
    """For every file that is shipped."""
    status, out, _ = cli("check", path)
    assert status == 0
    assert path.name in out


def test_clusters_lists_every_built_in_cluster(cli):
    """Names, devices, descriptions."""
    status, out, _ = cli("clusters")
    assert status == 0
    for path in (ROOT / "configs" / "clusters").glob("*.yaml"):
        assert path.stem in out
