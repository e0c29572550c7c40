"""`simrank prove`: algorithms of the table and files."""

import pytest

from tests.formats.msccl.programs import Block, text_of, xml


def test_an_algorithm_of_the_table_is_proved(cli):
    """What it does, beside what theory asks for."""
    status, out, _ = cli("prove", "one_shot", "--collective", "all_reduce", "-n", 8)
    assert (status, out) == (
        0,
        "proved: one_shot computes all_reduce of 1 MiB on 8 ranks\n"
        "  1 round, 56 messages\n"
        "  7 MiB in or out of the busiest rank, lower bound 1792 KiB (4.00 x)\n",
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["binomial", "--collective", "broadcast", "--root", 3], "broadcast of 1 MiB on 8 ranks"),
        (["ring", "--size", "3KiB", "-n", 3], "4 rounds, 12 messages"),
        (["ring", "-n", 1], "0 B in or out of the busiest rank, lower bound 0 B"),
        (["pairwise", "--collective", "all_to_all"], "all_to_all of 1 MiB on 8 ranks"),
    ],
)
def test_options_say_of_what(cli, args, words):
    """Eight ranks and 1 MiB, if nothing else is said."""
    status, out, _ = cli("prove", *args)
    assert status == 0
    assert words in out


def test_a_file_is_proved(cli, tmp_path):
    """It says itself what it computes, and on how many ranks."""
    path = tmp_path / "ring.xml"
    path.write_text(text_of("ring"))
    status, out, _ = cli("prove", path)
    assert status == 0
    assert out.startswith(f"proved: {path} computes all_reduce of 1 MiB on 4 ranks\n  6 rounds, 24")
    assert cli("prove", path, "-n", 4, "--collective", "all_reduce")[0] == 0


def test_a_file_that_is_wrong_is_not_proved(cli, tmp_path):
    """Exit status 1: a missing copy, a message without an equal; a file that is none is usage."""
    block, path = Block(), tmp_path / "x.xml"
    path.write_text(xml("allreduce", 1, [[block]]))
    status, out, _ = cli("prove", path)
    assert (status, out) == (
        1,
        f"not proved: {path}: at the end OUTPUT chunk 0 of rank 0 holds nothing, "
        "and should hold chunk 0 of rank 0\n",
    )
    sender = Block(1)
    sender.do("s")
    path.write_text(xml("allreduce", 1, [[sender], []]))
    status, out, _ = cli("prove", path)
    assert status == 1
    assert "a message has no equal on the other side" in out
    assert f"step 0 (s) at {path}:4 sends to gpu 1 on channel 0, which receives 0" in out
    path.write_text("<algo>")
    status, _, err = cli("prove", path)
    assert status == 2
    assert f"{path}:1: expected valid XML" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["rnig"], "algorithm: expected a file or one of ring, one_shot, two_shot, halving_doubl"),
        (["ring", "--collective", "all_red"], "to fix: write `all_reduce`"),
        (["ring", "--root", 2], "--root: expected no root of all_reduce, got 2"),
        (["binomial", "--collective", "reduce", "--root", 9], "root 9 is not one of 8 ranks"),
        (["ring", "--size", "12"], "a size with a unit"),
        (["none.xml"], "none.xml: expected a file that can be read"),
    ],
)
def test_bad_usage_says_what_may_stand_there(cli, args, message):
    """Exit status 2."""
    status, _, err = cli("prove", *args)
    assert status == 2
    assert message in " ".join("".join(c if c.isascii() else " " for c in err).split())


def test_a_proof_without_end_is_refused(cli):
    """Before it takes all memory."""
    status, out, err = cli("prove", "tree", "-n", "1000000")
    assert (status, out) == (2, "")
    assert "--num-ranks: expected ranks with at most 1048576 chunks in all" in err
    assert "got 1000000 ranks with 4000000\n  to fix: prove the algorithm on fewer ranks" in err


COPIES = """
<algo name="copies" proto="Simple" nchannels="1" nchunksperloop="65536" ngpus="1" coll="allreduce">
  <gpu id="0" i_chunks="65536" o_chunks="65536" s_chunks="0">
    <tb id="0" send="-1" recv="-1" chan="0">STEPS</tb>
  </gpu>
</algo>
"""
COPY = (
    '<step s="NUMBER" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="65536"'
    ' depid="-1" deps="-1" hasdep="0"/>'
)


def test_a_file_whose_proof_has_no_end_is_refused(cli, tmp_path):
    """A large one before it is read, and a small one whose steps move many chunks."""
    path = tmp_path / "large.xml"
    with path.open("wb") as file:
        file.truncate(200 << 20)
    status, out, err = cli("prove", path)
    assert (status, out, err) == (
        2,
        "",
        f"{path}: expected a file of at most 128 MiB, got 200 MiB\n",
    )
    steps = "".join(COPY.replace("NUMBER", str(number)) for number in range(129))
    path.write_text(COPIES.replace("STEPS", steps).strip())
    status, out, err = cli("prove", path)
    assert (status, out) == (2, "")
    assert "large.xml: expected steps with at most 8388608 chunks in all" in err
    assert err.endswith("got 8454144\n")


def test_what_a_file_says_is_not_overruled(cli, tmp_path):
    """Its collective and its ranks."""
    path = tmp_path / "ring.xml"
    path.write_text(text_of("ring"))
    for option, given, own in (("-n", 5, 4), ("--collective", "all_gather", "all_reduce")):
        status, _, err = cli("prove", path, option, given)
        assert status == 2
        assert f"expected {own}, as {path} says, got {given}" in err


def test_an_algorithm_is_written_and_proved_again(cli, tmp_path):
    """To a file, or to stdout: the same."""
    path = tmp_path / "out.xml"
    status, out, _ = cli("convert", "halving_doubling", "-n", 6, "--out", path)
    assert (status, out) == (0, f"{path}\n")
    assert cli("convert", "halving_doubling", "-n", 6)[1] == path.read_text()
    status, out, _ = cli("prove", path)
    assert status == 0
    assert "computes all_reduce of 1 MiB on 6 ranks" in out


def test_what_the_format_has_no_words_for_is_not_written(cli, tmp_path):
    """A root: exit status 1; what does not exist, or cannot be written, is usage."""
    status, _, err = cli("convert", "binomial", "--collective", "broadcast")
    assert status == 1
    assert "broadcast binomial: a collective with a root cannot be said in MSCCL's XML" in err
    status, _, err = cli("convert", "rnig")
    assert status == 2
    assert "algorithm: expected one of ring, one_shot" in err
    assert cli("convert", "ring", "--out", tmp_path / "no" / "out.xml")[0] == 2
