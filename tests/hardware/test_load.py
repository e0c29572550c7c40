"""Clusters by name: built-in ones are kept as they were built, under a fingerprint."""

import os
import pickle
import shutil
import subprocess
import sys

import pytest

from simrank.errors import ConfigError
from simrank.hardware import load, load_cluster


@pytest.fixture
def builtin(tmp_path, monkeypatch):
    """A folder of built-in clusters with one that follows another."""
    folder = tmp_path / "clusters"
    shutil.copytree(load.configs_dir(), tmp_path, dirs_exist_ok=True)
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    path = folder / "hgx_h100.yaml"
    monkeypatch.setattr(load, "configs_dir", lambda: tmp_path)
    monkeypatch.setattr("simrank.config.locate.configs_dir", lambda: tmp_path)
    monkeypatch.setattr(load, "_build", counted(load._build))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    return path


builds = []


def counted(build):
    builds.clear()

    def build_and_count(*args):
        builds.append(args)
        return build(*args)

    return build_and_count


def test_a_built_in_cluster_is_built_once(builtin):
    """A process has it once; the next one's is the same, number by number."""
    first = load_cluster("hgx_h100")
    assert load_cluster("hgx_h100") is first
    load._load.cache_clear()
    second = load_cluster("hgx_h100")
    assert second is not first
    assert len(builds) == 1
    assert pickle.dumps(first) == pickle.dumps(second)
    assert second.paths([0], [1]).latency_ps == first.paths([0], [1]).latency_ps
    assert not second.link_latency_ps.flags.writeable


def test_a_changed_file_is_read_again(builtin):
    """Any file of the folder counts: one cluster may be `like` another."""
    load_cluster("hgx_h100")
    os.utime(builtin, ns=(1, 1))
    load_cluster("hgx_h100")
    (builtin.parent / "other.yaml").write_text("name: other\n")
    load_cluster("hgx_h100")
    assert len(builds) == 3


def test_a_damaged_copy_is_not_used(builtin):
    """Cut off, or with another byte: it is built anew."""
    load_cluster("hgx_h100")
    kept = load._kept_file(builtin)
    content = kept.read_bytes()
    for damaged in (b"", content[:100], content[:-1] + bytes([content[-1] ^ 1])):
        kept.write_bytes(damaged)
        load._load.cache_clear()
        assert load_cluster("hgx_h100").num_devices == 8
    assert len(builds) == 4
    assert kept.read_bytes() == content


def test_a_folder_that_may_not_be_written_costs_time_only(builtin, monkeypatch):
    """As byte code: nothing is kept where Python may not, or where there is no room."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    load_cluster("hgx_h100")
    assert not load._kept_file(builtin).exists()
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    load._load.cache_clear()
    load._kept_file(builtin).parent.write_text("a file where the folder should be")
    assert load_cluster("hgx_h100").num_devices == 8
    assert len(builds) == 2


def test_numbers_of_nodes_are_built_once_each(builtin):
    """However they are asked for; what is no number of nodes is refused as ever."""
    two = load_cluster({"name": "h100_ib", "nodes": 2})
    assert two is load_cluster("h100_ib", 2)
    assert (two.num_nodes, load_cluster("h100_ib", 3).num_nodes) == (2, 3)
    assert len(builds) == 2
    for wrong in (0, True, "two"):
        with pytest.raises(ConfigError, match="a whole number from 1"):
            load_cluster({"name": "h100_ib", "nodes": wrong})


def test_paths_and_mappings_are_read_each_time(builtin):
    """Only names stand for files that do not change under a program."""
    for _ in range(2):
        assert load_cluster({"name": "hgx_h100"}).num_nodes == 1
        assert load_cluster(str(builtin)).num_nodes == 1
    assert len(builds) == 4
    with pytest.raises(ConfigError, match="a file or one of"):
        load_cluster("hgx_h999")


@pytest.mark.slow
def test_a_spawn_on_a_kept_cluster_reads_no_configuration():
    """Neither pydantic nor YAML is imported."""
    program = (
        "import sys, simrank; simrank.multiprocessing.spawn(int, nprocs=2);"
        "assert not {'pydantic', 'yaml'} & set(sys.modules), 'read again'"
    )
    writing = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            env=writing,
            check=False,
        )
    assert done.returncode == 0, done.stderr
