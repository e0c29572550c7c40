"""Classes of size: one definition for tables, errors and intervals."""

from simrank.calibration import cross_validation
from simrank.collectives.nccl import evidence, size_classes


def test_every_class_has_its_name_and_its_numbers():
    """One more class than there are ends between them, wherever classes are counted."""
    num_classes = len(size_classes.ENDS_BYTES) + 1
    assert sorted(size_classes.ENDS_BYTES) == list(size_classes.ENDS_BYTES)
    for numbers in (
        size_classes.NAMES,
        evidence.UNCALIBRATED_SPREAD,
        evidence.P2P_SPREAD,
        *(kind.aims_pct for kind in cross_validation.FITS.values() if kind.aims_pct),
        size_classes.TEXTS,
    ):
        assert len(numbers) == num_classes
