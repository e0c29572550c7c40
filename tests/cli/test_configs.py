"""`simrank check` and `simrank clusters`."""

from pathlib import Path

import pytest

from simrank.config import builtin_clusters, load_cluster_config
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


@pytest.mark.parametrize("name", builtin_clusters())
def test_a_printed_cluster_is_a_file_to_copy(cli, tmp_path, name):
    """It loads as the built-in one does."""
    status, out, _ = cli("clusters", name)
    assert status == 0
    copy = tmp_path / "mine.yaml"
    copy.write_text(out)
    assert load_cluster_config(copy) == load_cluster_config(name)


def test_a_cluster_that_is_not_built_in_is_not_printed(cli):
    """The error names the nearest one."""
    status, _, err = cli("clusters", "hgx_h10")
    assert status == 2
    assert "hgx_h100" in err
