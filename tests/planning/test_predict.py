"""`simrank.predict`: what nccl-tests would print."""

import cProfile
import pstats

import numpy as np
import pytest

import simrank
from simrank.errors import ConfigError, UnsupportedError
from simrank.planning.predict import GEMM_DTYPES, check_extent


def test_predictions_have_nccl_tests_columns():
    """Times, algorithm and bus bandwidths, and what NCCL chose."""
    found = simrank.predict("allreduce", ["8 B", "1 GiB"], cluster="hgx_h100")
    assert (found.cluster, found.collective, found.num_ranks) == ("hgx_h100", "all_reduce", 8)
    assert found.size_bytes.tolist() == [8, 1 << 30]
    assert found.algorithm.tolist() == ["ring", "nvls"]
    assert found.protocol.tolist() == ["LL", "Simple"]
    assert found.algbw_GBps == pytest.approx(found.size_bytes / found.time_us / 1e3)
    assert found.busbw_GBps == pytest.approx(found.algbw_GBps * 1.75)


def test_a_hundred_thousand_sizes_make_as_many_calls_of_python_as_a_hundred():
    """It is arrays throughout."""

    def num_calls(num_sizes):
        with cProfile.Profile() as profile:
            sizes = np.arange(1, num_sizes + 1) * 1024
            found = simrank.predict("all_reduce", sizes, cluster="h100_ib")
        assert len(found.time_us) == num_sizes
        return pstats.Stats(profile).total_calls

    num_calls(100)  # Reads the cluster, once.
    assert num_calls(100_000) < 2 * num_calls(100)


def test_more_nodes_take_longer():
    """The tree grows, and so does what an inner node sends."""
    times = [
        simrank.predict("all_reduce", 1 << 30, cluster="h100_ib", nodes=nodes).time_us[0]
        for nodes in (2, 4, 16)
    ]
    assert times == sorted(times)


def test_choices_can_be_forced_as_in_nccl():
    """By the values of NCCL_ALGO and NCCL_PROTO."""
    found = simrank.predict("all_reduce", 1 << 30, nccl_algo="Ring", nccl_proto="LL128")
    assert (found.algorithm[0], found.protocol[0]) == ("ring", "LL128")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_red", 8), "expected one of all_reduce"),
        (("all_reduce", 0), "sizes above 0"),
        (("all_reduce", [1.5]), "in whole bytes"),
        (("all_reduce", "8"), "size with a unit"),
        (("all_reduce", 8, 9), "expected 2 to 8, the devices of hgx_h100"),
        (("all_reduce", []), "sizes above 0"),
        (("all_reduce", np.array([], dtype=np.int64)), "sizes above 0"),
        (("all_reduce", [2**63]), "sizes above 0"),
        (("all_reduce", b"1 KiB"), "in whole bytes"),
        (("all_reduce", 8, 1), "expected 2 to 8"),
        (("all_reduce", 8, 0), "expected 2 to 8, the devices of hgx_h100"),
    ],
)
def test_bad_arguments_say_what_may_stand_there(arguments, message):
    """A ValueError each."""
    with pytest.raises(ValueError, match=message):
        simrank.predict(*arguments)


def test_a_cluster_that_does_not_say_what_nccl_finds_is_refused(tmp_path):
    """By name, with the cure."""
    link = {"between": ["gpu0", "gpu1"], "bandwidth": "1 GB/s", "latency": "1 us"}
    own = {
        "name": "own",
        "source": "assumed",
        "device": {"like": "hgx_h100", "count": 2},
        "links": [link],
    }
    with pytest.raises(UnsupportedError, match="add a block `nccl`"):
        simrank.predict("all_reduce", 8, cluster=own)
    with pytest.raises(ConfigError, match="expected a file or one of"):
        simrank.predict("all_reduce", 8, cluster="h100x")


def test_nodes_without_known_network_cards_are_refused():
    """Inside one node it says enough."""
    fabric = {
        "switches": ["rail"],
        "links": [{"between": ["each gpu", "rail"], "bandwidth": "1 GB/s", "latency": "1 us"}],
    }
    nccl = {
        "architecture": "hopper",
        "ring_bandwidth": "1 GB/s",
        "channels": 2,
        "p2p_channel_bandwidth": "1 GB/s",
    }
    link = {"between": ["gpu0", "gpu1"], "bandwidth": "1 GB/s", "latency": "1 us"}
    own = {
        "name": "own", "source": "assumed", "device": {"like": "hgx_h100", "count": 2},
        "links": [link], "fabric": fabric, "nccl": nccl, "nodes": 2,
    }  # fmt: skip
    assert simrank.predict("all_reduce", 8, 2, cluster=own).time_us[0] > 0
    with pytest.raises(UnsupportedError, match="add `nics` and `nic_bandwidth`"):
        simrank.predict("all_reduce", 8, cluster=own)


def test_a_node_that_is_not_filled_sends_through_the_cards_beside_its_ranks():
    """Nine ranks: the ninth is alone with one card, which all of its bytes pass."""
    for collective in ("all_reduce", "all_gather", "all_to_all"):
        found = simrank.predict(collective, 1 << 33, 9, cluster="h100_ib")
        assert found.busbw_GBps[0] < 110, collective
        assert "nvls_tree" not in found.algorithm


def test_the_bus_bandwidth_of_sendrecv_is_its_rate():
    """nccl-tests' factor is 1, whatever the number of ranks."""
    found = simrank.predict("sendrecv", 1 << 30, 2)
    assert found.busbw_GBps == pytest.approx(found.algbw_GBps)


@pytest.mark.parametrize("cluster", ["gb200_nvl72", "h100_ib", "hgx_a100"])
def test_messages_never_take_less_time_when_they_are_longer(cluster):
    """More channels are taken as they pay."""
    found = simrank.predict("sendrecv", 2 ** np.arange(3, 40), cluster=cluster)
    assert (np.diff(found.time_us) >= 0).all()


def test_no_calibration_has_two_spellings():
    """None, and the word of cluster files and of `simrank explain`."""
    plain, word = (
        simrank.predict("all_reduce", "1 MiB", cluster="h100_ib", calibration=calibration)
        for calibration in (None, "none")
    )
    assert plain.time_us.tolist() == word.time_us.tolist()
    assert plain.high_us.tolist() == word.high_us.tolist()


def test_a_group_of_one_rank_per_node_uses_the_card_beside_each():
    """Slower than a group that fills the nodes, and the same wherever its devices stand."""
    every = {"cluster": "h100_ib", "nodes": 4}
    whole = simrank.predict("all_reduce", "1 GiB", **every)
    first, last = (
        simrank.predict("all_reduce", "1 GiB", ranks=range(start, 32, 8), **every)
        for start in (0, 7)
    )
    assert first.num_ranks == 4
    assert first.time_us[0] > 4 * whole.time_us[0]
    assert first.time_us[0] == last.time_us[0]


@pytest.mark.parametrize("ranks", [[0], [0, 0], [0, 99], [0, 1.5], "0,8", 5, []])
def test_a_group_that_cannot_be_is_refused(ranks):
    """With the devices that there are."""
    with pytest.raises(ValueError, match="two or more different devices from 0 to 7"):
        simrank.predict("all_reduce", 8, ranks=ranks)


def test_bytes_are_reduced_without_the_switch():
    """int8 takes rings; bfloat16 the switch, a quarter faster."""
    slow, fast = (
        simrank.predict("all_reduce", "512 MiB", dtype=name) for name in ("int8", "bfloat16")
    )
    assert (slow.algorithm[0], fast.algorithm[0]) == ("ring", "nvls")
    assert slow.time_us[0] == pytest.approx(1.28 * fast.time_us[0], rel=0.1)
    copied = [simrank.predict("all_gather", 8, dtype=name).time_us[0] for name in ("int8", "half")]
    assert copied[0] == copied[1]


# ---- `simrank.predict_gemm`: times, intervals and the errors of its arguments ----


def test_a_prediction_has_a_time_an_interval_and_its_source():
    """In a graph; a launch alone starts later."""
    found = simrank.predict_gemm("hgx_h100", 4096, 8192, 8192)
    assert found.low_us < found.time_us < found.high_us
    assert 600 < found.tflops < 850
    assert found.tflops == pytest.approx(2 * 4096 * 8192**2 / found.time_us / 1e6)
    assert (found.basis, found.launch_us) == ("own", 2.35)
    assert found.source == "measured products of bfloat16 on h100_sxm"


def test_intervals_widen_with_the_distance_of_the_measured_device():
    """Own rows, a sibling's, none."""
    widths = []
    for cluster in ("hgx_h100", "hgx_h200", "mi300x"):
        found = simrank.predict_gemm(cluster, 1024, 4096, 4096)
        widths.append(found.high_us / found.low_us)
    assert widths == sorted(widths)
    assert "nothing was measured on MI300X" in found.source


@pytest.mark.parametrize("dtype", GEMM_DTYPES)
def test_every_dtype_is_predicted_on_blackwell(dtype):
    """Narrow ones are faster where arithmetic limits."""
    found = simrank.predict_gemm("gb300_nvl72", 8192, 8192, 8192, dtype=dtype)
    plain = simrank.predict_gemm("gb300_nvl72", 8192, 8192, 8192)
    assert found.time_us < (0.7 if GEMM_DTYPES[dtype] != "bfloat16" else 1.01) * plain.time_us


def test_a_sustained_clock_slows_arithmetic_and_not_memory():
    """By the share that the cluster states; attention alike."""
    boost, sustained = (
        {"name": "hgx_b200", "device": {"clocks": clocks}} for clocks in ("boost", "sustained")
    )
    large, small = (8192, 8192, 8192), (1, 8192, 8192)
    slower = [
        simrank.predict_gemm(sustained, *size).time_us / simrank.predict_gemm(boost, *size).time_us
        for size in (large, small)
    ]
    assert slower[0] == pytest.approx(1 / 0.88, rel=0.02)
    assert 1 <= slower[1] < 1.05
    times_us = [
        simrank.predict_attention(each, 32, 128, 8192, 8).time_us for each in (boost, sustained)
    ]
    assert 1.05 < times_us[1] / times_us[0] < 1 / 0.87


def test_wrong_arguments_are_named():
    """With the choices."""
    with pytest.raises(ValueError, match=r"dtype='bf16': expected one of bfloat16, float16"):
        simrank.predict_gemm("hgx_h100", 1, 1, 1, dtype="bf16")
    with pytest.raises(ValueError, match=r"m=0: expected a whole number from 1"):
        simrank.predict_gemm("hgx_h100", 0, 1, 1)
    with pytest.raises(ValueError, match=r"k=1\.5"):
        check_extent("k", 1.5)
    with pytest.raises(UnsupportedError, match=r"nvfp4 on H100 SXM"):
        simrank.predict_gemm("hgx_h100", 1, 1, 1, dtype="nvfp4")


def test_attention_has_a_time_an_interval_and_its_source():
    """Of prefill, causal: half of the scores count as operations."""
    found = simrank.predict_attention("hgx_h100", 32, 128, 8192, 2, kv_heads=8)
    assert found.low_us < found.time_us < found.high_us
    assert 400 < found.tflops < 800
    assert found.source == "measured prefill attention on h100_sxm, own"
    decode = simrank.predict_attention("hgx_h100", 32, 128, 8192, 64, kv_heads=8, phase="decode")
    read_bytes = 2 * 64 * 8 * 8192 * 128 * 2
    assert 0.7 < read_bytes / decode.time_us / 1e6 / 3.35 < 1
    sibling = simrank.predict_attention("hgx_h200", 32, 128, 8192, 64, kv_heads=8, phase="decode")
    assert sibling.basis == "sibling"
    assert sibling.time_us < 0.8 * decode.time_us


def test_wrong_attention_is_named():
    """With the choices, or the key of the cluster."""
    with pytest.raises(ValueError, match=r"phase='both': expected one of prefill, full, decode"):
        simrank.predict_attention("hgx_h100", 8, 128, 128, phase="both")
    with pytest.raises(ValueError, match=r"kv_heads=0"):
        simrank.predict_attention("hgx_h100", 8, 128, 128, kv_heads=0)
    with pytest.raises(UnsupportedError, match=r"attention on MI300X.*\n.*device\.measured_as"):
        simrank.predict_attention("mi300x", 8, 128, 128)


def test_nothing_is_faster_than_the_peak_or_the_memory():
    """Neither the time nor the lower end; A100's caches do not hold gigabytes."""
    for shape in ((128, 576, 1 << 20, 1, 1), (32, 128, 8192, 64, 8)):
        heads, head_dim, length, batch, kv_heads = shape
        for cluster, peak in (("hgx_h20", 148), ("hgx_a100", 312)):
            found = simrank.predict_attention(
                cluster, heads, head_dim, length, batch, kv_heads=kv_heads, phase="decode"
            )
            assert found.low_us <= found.time_us <= found.high_us
            assert 4e-6 * heads * batch * head_dim * length / found.low_us <= peak * 1.001
    read_bytes = 2 * 64 * 8 * 8192 * 128 * 2
    assert read_bytes / found.time_us / 1e6 < 2.04
    product = simrank.predict_gemm("hgx_h20", 4096, 4096, 4096)
    assert 2e-6 * 4096**3 / product.low_us <= 148.001


def test_a_kind_without_any_left_out_architecture_has_the_widest_interval():
    """RTX PRO 6000 has nvfp4, and no relative with rows of it."""
    found = simrank.predict_gemm("rtx_pro_6000_pcie", 4096, 4096, 4096, dtype="nvfp4")
    assert found.basis == "no relative"
    assert found.high_us / found.time_us > 1.5


def test_heads_of_keys_divide_heads():
    """As kernels have it; whole numbers of numpy are whole numbers."""
    with pytest.raises(ValueError, match=r"kv_heads=5: expected a divisor of heads=32"):
        simrank.predict_attention("hgx_h100", 32, 128, 4096, kv_heads=5)
    with pytest.raises(UnsupportedError, match=r"full attention on A100"):
        simrank.predict_attention("hgx_a100", 32, 128, 4096, phase="full")
    number = np.int64(4096)
    assert simrank.predict_gemm("hgx_h100", number, number, number).time_us > 0
