"""Clusters by name, path or mapping; built-in ones are kept as they were built.

Reading YAML and checking it takes a quarter of the start of a small program (measured on an 8-rank
spawn). So a built-in cluster is kept beside its file, in `__pycache__`, as Python keeps byte code:
under a fingerprint of every file that it follows from, and only where that folder may be written.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING

from simrank.config.files import configs_dir
from simrank.hardware.cluster import Cluster

if TYPE_CHECKING:
    from simrank.config.load import ClusterRef

_DIGEST_BYTES = 32
_PACKAGE = Path(__file__).resolve().parent.parent


def load_cluster(cluster: ClusterRef, nodes: int | None = None) -> Cluster:
    """Read a cluster by name, path or mapping and build it.

    Args:
        cluster: What `simrank.config.load_cluster_config` takes.
        nodes: Number of nodes instead of the one that the cluster states.

    Raises:
        ConfigError: The name is unknown or the configuration is wrong.
    """
    name: object = cluster
    number: object = nodes
    if nodes is None and isinstance(cluster, Mapping) and cluster.keys() == {"name", "nodes"}:
        name, number = cluster["name"], cluster["nodes"]
    source = _builtin_file(name)
    if source is None or not (number is None or (type(number) is int and number > 0)):
        return _build(cluster, nodes)
    return _load(source, _fingerprint(source), number)


@lru_cache(maxsize=32)  # A cluster never changes.
def _load(source: Path, fingerprint: bytes, nodes: int | None) -> Cluster:
    """Return a built-in cluster, cached on disk."""
    cluster = source.stem
    if nodes is not None:
        return _build(cluster, nodes)
    kept = _kept_file(source)
    built = _read(kept, fingerprint)
    if built is None:
        built = _build(cluster, None)
        if not sys.dont_write_bytecode:
            _write(kept, fingerprint, built)
    return built


def _build(cluster: ClusterRef, nodes: int | None) -> Cluster:
    from simrank.config.load import load_cluster_config  # noqa: PLC0415 - it takes long to import
    from simrank.hardware.build import build_cluster  # noqa: PLC0415 - it takes long to import

    return build_cluster(load_cluster_config(cluster, nodes))


def _builtin_file(cluster: object) -> Path | None:
    """Return the file of a built-in cluster; None for everything else."""
    if not isinstance(cluster, str) or not cluster.isidentifier():
        return None
    path = configs_dir() / "clusters" / f"{cluster}.yaml"
    return path if path.is_file() else None


def _kept_file(source: Path) -> Path:
    """Return the cache file of a built cluster, under the rules for byte code."""
    return Path(cache_from_source(str(source.with_suffix(".py")))).with_suffix(".cluster")


def _fingerprint(source: Path) -> bytes:
    """Return a fingerprint of the files of the built-in clusters.

    Those are the clusters (one may be `like` another), what reads them, and what is kept.
    """
    facts = [sys.version, str(source)]
    for folder in (source.parent, _PACKAGE / "config", _PACKAGE / "hardware"):
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if entry.name.endswith((".yaml", ".py")):
                status = entry.stat()
                facts.append(f"{entry.name} {status.st_mtime_ns} {status.st_size}")
    return hashlib.sha256("\n".join(facts).encode()).digest()


def _read(kept: Path, fingerprint: bytes) -> Cluster | None:
    """Return a kept cluster; None if there is none, or not of these files, or not whole."""
    try:
        content = kept.read_bytes()
    except OSError:
        return None
    payload = content[2 * _DIGEST_BYTES :]
    if content[: 2 * _DIGEST_BYTES] != fingerprint + hashlib.sha256(payload).digest():
        return None
    built = pickle.loads(payload)
    assert isinstance(built, Cluster), "it was written here"
    return built


def _write(kept: Path, fingerprint: bytes, built: Cluster) -> None:
    """Keep a cluster, unless the folder may not be written."""
    payload = pickle.dumps(built)
    content = fingerprint + hashlib.sha256(payload).digest() + payload
    draft = kept.with_suffix(f".{os.getpid()}")
    try:
        kept.parent.mkdir(exist_ok=True)
        draft.write_bytes(content)
        draft.replace(kept)  # At once: another process reads the old one, or the new.
    except OSError:
        return
