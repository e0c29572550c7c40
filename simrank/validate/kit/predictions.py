"""The predictions in a kit: what it measures itself on simulated ranks of each cluster."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from simrank.config.project import SIMULATED
from simrank.context import Context
from simrank.errors import DeadlockError, SimrankError
from simrank.hardware.load import load_cluster
from simrank.multiprocessing.script import run_script
from simrank.planning.predict import predict, predict_gemm
from simrank.validate.compare.comparison import models_of
from simrank.validate.kit.assemble import Own, script
from simrank.validate.kit.script.result import VALUES, hang_of, merged, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Single nodes whose GPUs people rent; each device once.
CLUSTERS = (
    "hgx_a100", "hgx_h100", "hgx_h200", "hgx_b200", "hgx_h20", "l40s_pcie", "gb200_nvl72",
    "rtx_pro_6000_pcie", "mi300x",
)  # fmt: skip
PHASES = ("launches", "copies", "products", "attention")  # In which no value is read.
HANGS = ("one leaves out", "all receive first")
_FOREVER = "1e5"  # Simulated seconds.

Row = dict[str, Any]
Runs = Callable[..., list[Row]]  # A phase, the number of ranks, a cluster: as `_run`.


def predicted(
    clusters: Sequence[str],
    worlds: Sequence[int],
    on_step: Callable[[str], None] = lambda _: None,
    own: Own | None = None,
) -> dict[str, str]:
    """Return the parts of predictions as texts: one per cluster, and the values.

    Args:
        clusters: Names or files.
        worlds: Numbers of GPUs that run collectives together.
        on_step: Called with the title of each step before it.
        own: A program and kernels of the author.

    Raises:
        ConfigError: A cluster is wrong.
        SimrankError: A phase fails.
    """
    with TemporaryDirectory(prefix="simrank_kit_") as folder:
        kit = Path(folder) / "kit.py"
        kit.write_text(script({}, own), encoding="utf-8")
        run = cache(partial(_run, kit))  # Some phases have times and values.
        parts = {}
        for cluster in clusters:
            on_step(f"times on {cluster}")
            parts[cluster] = _lines(_of_cluster(run, cluster, worlds, (own or Own()).texts()))
        on_step("values and hangs")
        values = _values(run, clusters[0], worlds, (own or Own()).texts())
        parts[VALUES] = _lines({"values": values})
    return parts


def steps(clusters: Sequence[str]) -> int:
    """Return the number of steps."""
    return len(clusters) + 1


def _lines(document: dict[str, Any]) -> str:
    """Return a document with a line for each entry of its tables."""
    tables = []
    for name, entry in document.items():
        if isinstance(entry, dict):
            rows = ",\n".join(f"{json.dumps(key)}:{text_of(entry[key])}" for key in entry)
            tables.append(f'"{name}":{{\n{rows}}}')
        else:
            tables.append(f'"{name}":{text_of(entry)}')
    return "{" + ",\n".join(tables) + "}"


def _of_cluster(
    run: Runs, cluster: str, worlds: Sequence[int], added: Mapping[str, str]
) -> dict[str, Any]:
    built = load_cluster(cluster)
    rows: list[Row] = []
    for phase in PHASES:
        rows += run(phase, 1, cluster, has_data=False)
    for phase in _kernel_phases(added):
        rows += run(phase, 1, cluster)
    for ranks in worlds:
        if ranks <= built.devices_per_node:
            rows += run("collectives", ranks, cluster, has_data=False)
            rows += run("pairs", ranks, cluster, has_data=False)
            if "program" in added:
                rows += run("own program", ranks, cluster)
    times = _grouped(
        {
            f"{row['phase']}: {row['name']}": _rounded([row["time_us"], *_interval(row, cluster)])
            for row in rows
            if row["kind"] == "time"
        }
    )
    device = built.device.name
    facts = {"device": device, "models": models_of(device), "num_sms": built.device.num_sms}
    return {**facts, "times": times}


def _grouped(times: Mapping[str, list[float]]) -> dict[str, Any]:
    """Return times with those of several sizes under one name, as `flat` reads them."""
    shared = Counter(name.rpartition(", ")[0] for name in times)
    found: dict[str, Any] = {}
    for name, known in times.items():
        group, _, size = name.rpartition(", ")
        if group and shared[group] > 1:
            found.setdefault(group, {})[size] = known
        else:
            found[name] = known
    return found


def _rounded(numbers: Sequence[float]) -> list[float]:
    """Return numbers with five digits, whole ones without a point."""
    short = [float(f"{each:.5g}") for each in numbers]
    return [int(each) if each.is_integer() else each for each in short]


def _interval(row: Row, cluster: str) -> list[float]:
    """Return the ends of the 90 % interval, for what has one."""
    if row["phase"] == "collectives":
        sizes = [row["bytes"]]
        known = predict(row["collective"], sizes, row["ranks"], cluster)
        low, high = float(known.low_us[0]), float(known.high_us[0])
        share = row["time_us"] / float(known.time_us[0])  # Of a loop of torch.
        return [low * share, high * share]
    if row["phase"] == "products" and row["dtype"] in ("bfloat16", "float16"):
        product = predict_gemm(cluster, row["m"], row["n"], row["k"], dtype=row["dtype"])
        share = row["time_us"] / product.time_us
        return [product.low_us * share, product.high_us * share]
    return []


def _kernel_phases(added: Mapping[str, str]) -> list[str]:
    kernels = ["kernels"] if find_spec("triton") is not None else []
    return [*kernels, *(["own kernels"] if "kernels" in added else [])]


def _values(
    run: Runs, cluster: str, worlds: Sequence[int], added: Mapping[str, str]
) -> dict[str, Any]:
    rows: list[Row] = []
    for phase in _kernel_phases(added):
        rows += run(phase, 1, cluster)
    found: dict[str, Any] = {}
    for ranks in worlds:
        rows += run("programs", ranks, cluster)
        rows += run("own program", ranks, cluster) if "program" in added else []
        for hang in HANGS:
            stuck = hang_of(run(hang, ranks, cluster), ranks)
            found[f"hangs: {hang} on {ranks} ranks"] = stuck
    for row in rows:
        if row["kind"] == "value":
            facts = {name: row[name] for name in ("ranks", "sample") if name in row}
            found[f"{row['phase']}: {row['name']}"] = facts
    return found


def _run(kit: Path, phase: str, ranks: int, cluster: str, *, has_data: bool = True) -> list[Row]:
    """Run a phase on simulated ranks, and return its rows."""
    to = kit.with_name("rows")
    to.unlink(missing_ok=True)
    context = Context(
        load_cluster(cluster), data=has_data, carrier="thread", cuda_devices=SIMULATED
    )
    words = ["--worker", phase, "--to", str(to), "--limit", _FOREVER, "--cold"]
    hidden = io.StringIO()
    try:
        with redirect_stdout(hidden), redirect_stderr(hidden), context:
            run_script(context.program, kit, words, ranks)
    except DeadlockError:
        if phase not in HANGS:
            raise
    rows = [json.loads(line) for line in to.read_text(encoding="utf-8").splitlines()]
    notes = [row["text"] for row in rows if row["kind"] == "note"]
    if notes:  # On a GPU they are part of the result; here everything runs.
        raise SimrankError(f"{phase} on {cluster}: {notes[0]}")
    return merged(rows)
