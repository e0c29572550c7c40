"""A measured table from outside: what is asked for, and what it would change."""

import numpy as np
import pytest

from simrank.calibration.accuracy import table_series
from simrank.calibration.contribution import contribution
from simrank.calibration.hold_outs import observed_of
from simrank.config.files import configs_dir
from simrank.errors import ConfigError

MACHINE = """cluster: h100_ib
nodes: 2
num_ranks: 16
library: NCCL 2.28.7
mode: back_to_back
site: a new one
launch: processes
"""
HEADER = "system,op,nranks,bytes,dtype,time_us,algbw_GBps,busbw_GBps,source\n"
SIZES = {8: 30.0, 1 << 20: 95.0, 1 << 28: 1500.0}
LOG = (
    "# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor)\n"
    + "".join(f"#  Rank {n:2} Pid {n + 100} on h{n // 8} device {n % 8}\n" for n in range(16))
    + "# all_reduce_perf\n"
    + "".join(
        f"{size} {size // 4} float sum -1 {time_us} {size / time_us / 1e3:.2f} "
        f"{size / time_us / 1e3 * 1.875:.2f} 0\n"
        for size, time_us in SIZES.items()
    )
)

KNOWN = [
    observed_of(each)
    for name in ("h100x16_nebius_ib_allreduce", "h100x8_aws_p5_allreduce")
    for each in table_series(name)
]


def _table(times_us):
    return HEADER + "".join(
        f"mine,all_reduce,16,{size},float32,{time_us},1,1,me\n"
        for size, time_us in times_us.items()
    )


def _write(folder, text, machine=MACHINE, name="mine.csv"):
    path = folder / name
    path.write_text(text)
    path.with_suffix(".yaml").write_text(machine)
    return path


def test_a_table_says_which_evidence_it_adds_and_what_it_changes(tmp_path):
    """One more site for its operation and network; fitted to it, its errors are smaller."""
    text = _table(SIZES)
    found = contribution(_write(tmp_path, text), text, KNOWN)
    before, after = found.evidence["all_reduce on several nodes over ib"]
    assert after == before + 1
    (plain,), (fitted,) = found.left, found.again
    assert np.abs(fitted.errors).mean() < np.abs(plain.errors).mean()
    assert 0 < np.median(found.shifts) < np.max(found.shifts)
    assert found.doubts == ()


def test_a_log_is_written_as_a_table(tmp_path):
    """Beside it, with its times; a file in its place stays."""
    log = _write(tmp_path, LOG, name="run.txt")
    found = contribution(log, LOG, KNOWN)
    assert found.is_written
    text = found.table.read_text()
    assert [float(line.split(",")[5]) for line in text.splitlines()[1:]] == list(SIZES.values())
    assert contribution(found.table, text, KNOWN).left[0].errors == pytest.approx(
        found.left[0].errors
    )
    with pytest.raises(ConfigError, match=r"expected no file run\.csv"):
        contribution(log, LOG, KNOWN)


@pytest.mark.parametrize(
    ("machine", "complaint"),
    [
        (
            MACHINE.replace("site: a new one\n", ""),
            r"mine\.yaml: site: expected the name of a site",
        ),
        (MACHINE.replace("launch: processes\n", ""), r"launch: expected processes .*, got none"),
        (MACHINE.replace("back_to_back", "torch"), r"mode: expected back_to_back.*, got torch"),
        (MACHINE.replace("processes", "fibers"), r"launch: expected one of processes, threads"),
    ],
)
def test_what_a_table_lacks_is_asked_for(tmp_path, machine, complaint):
    """With the file and the key."""
    text = _table(SIZES)
    path = _write(tmp_path, text, machine)
    with pytest.raises(ConfigError, match=complaint):
        contribution(path, text, KNOWN)


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    """Two sizes, no site, no launch: three lines."""
    text = _table({8: 30.0, 1 << 20: 95.0})
    machine = MACHINE.replace("site: a new one\n", "").replace("launch: processes\n", "")
    path = _write(tmp_path, text, machine)
    with pytest.raises(ConfigError) as raised:
        contribution(path, text, KNOWN)
    assert len(raised.value.problems) == 3


def test_without_a_machine_file_the_message_says_what_to_write(tmp_path):
    """Its keys, with examples."""
    path = tmp_path / "mine.csv"
    path.write_text(_table(SIZES))
    with pytest.raises(ConfigError, match=r"mine\.yaml: .* no file\n  to fix: write cluster: h100"):
        contribution(path, path.read_text())


def test_facts_that_only_a_log_has_belong_into_the_machine_file(tmp_path):
    """Its rows as CSV would lose them."""
    log = LOG.replace("nGpus 1", "nGpus 8") + "NCCL_ALGO=Ring\n"
    path = _write(tmp_path, log, name="run.txt")
    with pytest.raises(ConfigError) as raised:
        contribution(path, log, KNOWN)
    assert [each.key_path for each in raised.value.problems] == ["gpus_per_thread", "algorithms"]


def test_times_that_are_shipped_are_no_contribution(tmp_path):
    """Under another name they would count twice."""
    text = (configs_dir() / "measured" / "h100x16_nebius_ib_allreduce.csv").read_text()
    path = _write(tmp_path, text)
    with pytest.raises(ConfigError, match="got those of h100x16_nebius_ib_allreduce"):
        contribution(path, text, KNOWN)


def test_times_in_another_unit_are_doubted(tmp_path):
    """Milliseconds are no microseconds."""
    text = _table({size: time_us / 1000 for size, time_us in SIZES.items()})
    found = contribution(_write(tmp_path, text), text, KNOWN)
    assert "check the cluster, the unit and the row" in found.doubts[0]


def test_a_log_without_its_head_may_be_said(tmp_path):
    """Its collective and its number of ranks, as for other logs."""
    lines = "\n".join(line for line in LOG.splitlines() if not line.startswith("#"))
    path = _write(tmp_path, lines, name="run.txt")
    with pytest.raises(ConfigError, match="--collective all_reduce"):
        contribution(path, lines, KNOWN)
    found = contribution(path, lines, KNOWN, collective="all_reduce", num_ranks=16)
    assert found.left[0].observed.labels.operation == "all_reduce"
