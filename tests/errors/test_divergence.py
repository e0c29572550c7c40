"""Where ranks parted, as reports say it."""

from simrank.errors import DivergencePoint, Side


def test_a_parting_names_the_line_and_what_each_side_saw():
    """On one line, ranks as ranges."""
    sides = (Side((0,), "took it", (("loss", "3.5"),)), Side((1, 2, 3), "did not"))
    diverged_at = DivergencePoint("/home/me/train.py", 41, "if loss > 3:", sides)
    assert str(diverged_at) == (
        "diverged at train.py:41 `if loss > 3:`: rank 0 took it (loss = 3.5); ranks 1-3 did not"
    )


def test_a_line_whose_source_is_not_known_is_its_number():
    """A file that is gone."""
    diverged_at = DivergencePoint(
        "train.py", 41, "", (Side((0,), "returned"), Side((1,), "waits there"))
    )
    assert str(diverged_at) == "diverged at train.py:41: rank 0 returned; rank 1 waits there"
