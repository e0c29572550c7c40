"""`simrank check` and `simrank clusters`."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_check_says_what_a_good_file_is(cli):
    """For every file that is shipped."""
    for path in sorted((ROOT / "configs").glob("*/*.yaml")):
        status, out, _ = cli("check", path)
        assert status == 0
        assert path.name in out


def test_clusters_lists_every_built_in_cluster(cli):
    """Names, devices, descriptions."""
    status, out, _ = cli("clusters")
    assert status == 0
    for path in (ROOT / "configs" / "clusters").glob("*.yaml"):
        assert path.stem in out
