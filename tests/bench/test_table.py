"""The text table: nccl-tests' columns."""

from dataclasses import replace

import pytest

from simrank.bench.run import Row, run
from simrank.bench.series import series_of
from simrank.bench.table import (
    SeriesComparison,
    Table,
    comparison_of,
    coverage_line,
    errors_line,
    footer,
    lines,
    unchecked_line,
)
from simrank.config import bench_config_from_mapping
from simrank.config.locate import configs_dir

ROW = Row(
    cluster="hgx_h100", collective="all_reduce", algorithm="ring", protocol=None, num_ranks=8,
    num_nodes=1,
    in_place=False, redop="sum", root=-1, dtype="float32", size_bytes=1024, time_us=15.25,
    algbw_GBps=0.067, busbw_GBps=0.117, num_wrong=0, cost_level="schedule", calibration=None,
    interval_us=None, channels=1, measured_us=12.5, error_pct=22.0,
)  # fmt: skip


def test_a_line_has_nccl_tests_columns_in_order():
    """Size count type redop root, then four columns per form, algorithm, measured, error."""
    (line,) = lines([ROW], with_measured=True)
    assert line.split() == ["1024", "256", "float32", "sum", "-1", "15.25", "0.07", "0.12", "0",
                            "N/A", "N/A", "N/A", "N/A", "ring", "12.50", "+22.0"]  # fmt: skip


def test_both_places_share_a_line():
    """Out of place first."""
    from dataclasses import replace

    in_place = replace(ROW, in_place=True, time_us=14.0, num_wrong=None)
    (line,) = lines([ROW, in_place], with_measured=False)
    assert line.split()[5:13] == ["15.25", "0.07", "0.12", "0", "14.00", "0.07", "0.12", "N/A"]


def test_the_footer_says_ok_or_failed():
    """As nccl-tests' last lines."""
    from dataclasses import replace

    assert "0 OK (1 of 1 rows checked)" in footer([ROW])
    assert "3 FAILED" in footer([replace(ROW, num_wrong=3)])


def test_errors_are_averaged_by_class_of_size():
    """Small and large sizes fail for different reasons, so one mean would hide both."""
    from dataclasses import replace

    large = replace(ROW, size_bytes=2**30, error_pct=-10.0)
    line = errors_line([ROW, replace(ROW, error_pct=-24.0), large])
    assert line.endswith("23 % up to 32 KiB, 10 % above")
    assert errors_line([replace(ROW, error_pct=None)]) is None


def test_the_coverage_counts_each_size_once():
    """Out of place and in place are one row of the table."""
    from dataclasses import replace

    inside = replace(ROW, interval_us=(12.0, 18.0))
    outside = replace(inside, size_bytes=2048, measured_us=11.0)
    rows = [inside, replace(inside, in_place=True), outside]
    assert coverage_line(rows) == "# Measured time inside the 90% interval in 1 of 2 rows"
    assert coverage_line([ROW]) is None


def test_a_row_without_a_check_has_a_reason():
    """Predicted, too large, or the check is off."""
    from dataclasses import replace

    unchecked = replace(ROW, num_wrong=None)
    large = replace(unchecked, size_bytes=2**30)
    assert unchecked_line([ROW], "auto") is None
    assert "nccl predicts times without a run" in unchecked_line([unchecked], "nccl")
    assert "not checked above 64 MiB, or 1 GiB on all" in unchecked_line([ROW, large], "auto")
    assert "the check is off" in unchecked_line([unchecked, large], "auto")


class Titled:
    """A series, as far as a table asks."""

    title = "all_reduce auto float32 sum on 8 ranks of hgx_h100"
    algorithm = "auto"


def test_a_series_that_is_not_comparable_has_no_columns_of_a_table():
    """Neither interval nor measured time nor error; a line says why."""
    from dataclasses import replace

    text = []
    row = replace(ROW, interval_us=(12.0, 18.0), protocol="LL", cost_level="nccl")
    table = Table(text.append, with_measured=True)
    table.add(Titled, [row], SeriesComparison("ring is forced"))
    table.close()
    head, line, *said = text
    assert not {"interval", "measured", "error"} & set(head.split())
    assert line.split()[-2:] == ["ring", "LL"]
    assert said[0] == "# No 90% interval and no error: ring is forced"


def shown(width):
    """Return what a table prints of two forms of a size, with all columns that there are."""
    from dataclasses import replace

    text = []
    row = replace(ROW, interval_us=(12.0, 18.0), protocol="LL", calibration="fitted to a table")
    table = Table(text.append, with_measured=True, width=width)
    table.add(Titled, [row, replace(row, in_place=True, time_us=14.0)])
    return "\n".join(text).splitlines()


def test_a_narrow_terminal_gets_the_columns_that_fit():
    """Out of place, without what follows from the others; what is left out is said."""
    head, left_out, names, _, line = shown(100)
    assert max(map(len, [head, left_out, names, line])) <= 100
    assert "all columns from 186 characters on" in left_out
    assert names.split()[1:4] == ["size", "time", "busbw"]
    assert line.split() == ["1024", "15.25", "0.12", "0", "ring", "LL", "12.00", "-", "18.00",
                            "12.50", "+22.0"]  # fmt: skip


def test_pipes_and_wide_terminals_get_all_columns():
    """What reads nccl-tests' output finds what it looks for."""
    assert shown(None) == shown(186)
    assert shown(None) != shown(185)


# ---- which series have errors against a measured table ----

LINKS = {"name": "hgx_h100", "cost_level": "schedule"}
CONFIG = {"cluster": "hgx_h100", "collectives": ["all_reduce"], "sizes": ["1 KiB"]}


def comparison(**keys):
    config = bench_config_from_mapping(CONFIG | keys)
    (series,) = series_of(config)
    return comparison_of(series, config)


@pytest.mark.parametrize("algorithm", ["auto", "nccl"])
def test_nccls_choice_is_comparable(algorithm):
    """Run or predicted, back to back as measured."""
    found = comparison(algorithms=[algorithm], measured="h100x8_aws_p5_allreduce")
    assert (found.difference, found.floor_us) == (None, 0.0)
    assert list(found.notes()) == []


@pytest.mark.parametrize(
    ("keys", "basis"),
    [
        (
            {"measured": "h100x8_aws_p5_allreduce"},
            "with site 'aws h100' left out of the calibration",
        ),
        (
            {"measured": ["h100x8_aws_p5_allreduce", "h200x8_azure_ndh200v5_allreduce"]},
            "with sites 'aws h100', 'azure h200' left out of the calibration",
        ),
        (
            {"cluster": LINKS, "measured": "h100x8_aws_p5_allreduce"},
            None,
        ),
        ({}, None),
    ],
)
def test_errors_name_the_constants_behind_them(keys, basis):
    """With the measured site left out wherever the constants are fitted to it."""
    found = comparison(algorithms=["auto"], **keys)
    assert found.basis == basis
    assert found.is_left_out == ("left out" in (basis or ""))


def test_constants_that_leave_no_site_out_are_named(tmp_path):
    """NCCL's own have none to leave out."""
    text = (configs_dir() / "clusters" / "hgx_h100.yaml").read_text()
    (tmp_path / "plain.yaml").write_text(text + "calibration: none\n")
    found = comparison(
        cluster=str(tmp_path / "plain.yaml"),
        measured="h100x8_aws_p5_allreduce",
        algorithms=["auto"],
    )
    assert found.basis == "by NCCL's own constants, fitted to no site"
    assert not found.is_left_out


def test_a_table_of_another_site_is_named_as_one(tmp_path):
    """Its name is the site where no file beside it says more."""
    mine = tmp_path / "mine.csv"
    mine.write_text((configs_dir() / "measured" / "h100x8_aws_p5_allreduce.csv").read_text())
    found = comparison(measured=str(mine))
    assert (found.basis, found.is_left_out) == (
        "at a site that the calibration has not seen",
        False,
    )


def test_left_out_errors_have_a_column_of_that_name():
    """And lines that say so, with the interval of the same constants."""
    text = []
    row = replace(
        ROW, interval_us=(12.0, 18.0), cost_level="nccl", left_out="a", left_out_us=20.0,
        left_out_interval_us=(15.0, 25.0), error_pct=60.0,
    )  # fmt: skip
    table = Table(text.append, with_measured=True)
    table.add(Titled, [row], SeriesComparison(basis="with site 'a' left out", is_left_out=True))
    table.close()
    head, line, *said = text
    assert head.splitlines()[2].endswith("measured left out")
    assert line.split()[-1] == "+60.0"
    assert "# Measured time inside the 90% interval in 0 of 1 rows, with site 'a' left out" in said
    assert (
        "# Mean absolute error against measured times, with site 'a' left out: "
        "60 % up to 32 KiB" in said
    )


@pytest.mark.parametrize(
    ("keys", "difference"),
    [
        ({"algorithms": ["ring"]}, "ring is forced, NCCL's own choice was measured"),
        (
            {"iterations": {"blocking": True}},
            "iterations wait for each other, back to back was measured",
        ),
        ({"measured": "xla_h100x8"}, "calls run back to back, loops of xla were measured"),
    ],
)
def test_another_algorithm_or_launch_mode_is_not_comparable(keys, difference):
    """The reason is in the comment line."""
    found = comparison(**keys)
    assert found.difference == difference
    assert list(found.notes()) == [f"# No 90% interval and no error: {difference}"]


def test_times_of_one_thread_with_several_gpus_have_no_error_below_its_launches():
    """Large sizes have errors as usual."""
    found = comparison(cluster="hgx_a100", measured="a100x8_stas_allreduce")
    assert found.floor_us > 0
    (row, *_) = run_rows()
    small = replace(row, time_us=found.floor_us - 1, measured_us=100.0, error_pct=1.0)
    large = replace(small, time_us=found.floor_us + 1)
    assert [each.error_pct for each in found.shown([small, large])] == [None, 1.0]
    assert found.shown([small])[0].interval_us == row.interval_us
    assert "one host thread launched on several GPUs" in "".join(found.notes())


def run_rows():
    """Return rows of a run."""
    from simrank.bench.run import Watcher

    class Found(Watcher):
        rows = ()

        def on_rows(self, series, rows):
            del series
            self.rows = rows

    found = Found()
    run(CONFIG, watcher=found)
    return found.rows
