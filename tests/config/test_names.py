"""Names of dtypes, reduce operations and collectives."""

from simrank.config import bench_config_from_mapping, names


def test_nccl_tests_spellings_become_torchs():
    """What users type from habit works."""
    config = bench_config_from_mapping(
        {
            "cluster": "hgx_h100",
            "collectives": ["alltoall", "allreduce"],
            "dtypes": ["half", "float"],
        }
    )

    assert config.collectives == ("all_to_all", "all_reduce")
    assert config.dtypes == ("float16", "float32")


def test_an_alias_stands_for_a_name_that_exists():
    """No spelling leads to a word that nobody knows."""
    assert set(names.DTYPE_ALIASES.values()) <= set(names.DTYPES)
    assert set(names.REDOP_ALIASES.values()) <= set(names.REDOPS)
    assert set(names.COLLECTIVE_ALIASES.values()) <= set(names.COLLECTIVES)
