"""What is said of a word that an option does not know."""

import pytest

from simrank.cli.choice_hints import check_words
from simrank.errors import ConfigError

SCRIPT = "train.py"
FABRIC = "take a cluster with a fabric: h100_efa, h100_ib"


@pytest.mark.parametrize(
    ("args", "to_fix"),
    [
        (["run", "--on-failure", "contine", SCRIPT], "write `continue`"),
        (["run", "--carrier", "tread", SCRIPT], "write `thread`"),
        (["run", "--compute-time", "rofline", SCRIPT], "write `roofline`"),
        (["run", "--devices", "simulatd", SCRIPT], "write `simulated`"),
        (["run", "--races", "eror", SCRIPT], "write `error`"),
        (["run", "--summary", "jsn", SCRIPT], "write `json`"),
        (["run", "--prefix", "rnk", SCRIPT], "write `rank`"),
        (["run", "--cluster", "hgx_h10", SCRIPT], "write `hgx_h100`"),
        (["bench", "all_reduce", "-o", "smu"], "write `sum`"),
        (["bench", "all_reduce", "-d", "flot32"], "write `float32`"),
        (["explain", "--collective", "all_redue"], "write `all_reduce`"),
        (["tune", "--collective", "all_redue"], "write `all_reduce`"),
        (["accuracy", "--fit", "tabel"], "write `table`"),
        (["compare", "--backend", "glo", SCRIPT], "write `gloo`"),
        (["check", "hgx_h10"], "write `hgx_h100`"),
        (["bench", "all_reduce", "--nodes", "4"], FABRIC),
        (["explain", "--nodes", "4"], FABRIC),
        (["run", "--nnodes", "4", SCRIPT], FABRIC),
    ],
)  # fmt: skip
def test_a_near_miss_is_answered_with_what_was_meant(cli, args, to_fix):
    """With status 2, before anything runs."""
    status, _, err = cli(*args)
    assert status == 2
    assert to_fix in err


def test_a_word_that_resembles_none_gets_the_list():
    """No suggestion is better than a wrong one."""
    with pytest.raises(ConfigError, match=r"expected one of abort, continue, got xyz$"):
        check_words(on_failure="xyz")
    check_words(on_failure=None)
