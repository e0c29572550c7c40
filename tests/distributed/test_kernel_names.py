"""Names of the collective library's kernels."""

from simrank.distributed.request import COLLECTIVES, Signature, module_of


def test_what_reduces_has_a_kernel_per_reduction_and_type():
    """And what moves bytes has one; a barrier is an all_reduce."""
    assert module_of(Signature("all_reduce", "max", None, "int32", 4)) == "all_reduce max int32"
    assert module_of(Signature("all_gather", None, None, "int32", 4)) == "all_gather"
    assert module_of(Signature("barrier", None, None, "float32", 1)) == "all_reduce sum float32"


def test_what_is_preloaded_is_nine_types_without_float16():
    """As the library that taught this does."""
    of_sum = [name for name in COLLECTIVES if name.startswith("all_reduce sum")]
    assert len(of_sum) == 9
    assert "all_reduce sum float16" not in of_sum
    assert "all_gather" in COLLECTIVES
