"""MSCCL's XML: what is read, and what is said of files that are wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simrank.errors import ConfigError, ScheduleError
from simrank.formats.msccl import parse_msccl, prove_program, read_msccl

from .programs import RIGHT, as_written, named, text_of

EXCHANGE = text_of("exchange")


def test_a_program_is_read_with_its_lines(tmp_path):
    """Attributes that nobody knows are left alone."""
    path = tmp_path / "exchange.xml"
    path.write_text(EXCHANGE.replace('proto="LL"', 'proto="LL" redop="sum"'))
    made = read_msccl(path)
    assert (made.collective, made.world_size, made.num_chunks) == ("all_reduce", 2, 2)
    assert (made.name, made.protocol, made.in_place) == ("by hand", "LL", True)
    block = made.gpus[1].blocks[0]
    assert (block.send, block.recv, block.channel) == (0, 0, 0)
    step = made.gpus[0].blocks[1].steps[1]
    assert (step.type, step.src, step.dst, step.count) == ("re", ("s", 0), ("i", 0), 1)
    assert (step.depends_on, step.signals, step.line) == ((0, 1), False, 9)


def test_gpus_may_stand_in_any_order():
    """Their ids say who they are."""
    head, first, second = EXCHANGE.split("  <gpu")
    body, end = second.split("</algo>")
    made = parse_msccl("  <gpu".join((head, body, first)).encode() + b"</algo>" + end.encode())
    assert [gpu.rank for gpu in made.gpus] == [0, 1]
    assert [gpu.blocks[0].line for gpu in made.gpus] == [17, 3]


def test_in_place_buffers_are_one():
    """Of all_gather input is a part of output, of reduce_scatter the other way round."""
    gather, scatter = named("all_gather in place"), named("reduce_scatter in place")
    assert gather.place(2, ("i", 0)) == gather.place(2, ("o", 2)) == ("o", 2)
    assert scatter.place(1, ("o", 1)) == scatter.place(1, ("i", 3)) == ("i", 3)
    assert named("exchange").place(0, ("i", 1)) == ("o", 1)
    assert named("ring").place(0, ("i", 1)) == ("i", 1)


@pytest.mark.parametrize(
    ("name", "collective", "protocol", "shape"),
    [
        ("ring_2x.xml", "all_reduce", "LL", (4, 8, 2, True)),
        ("allpairs.xml", "all_reduce", "LL", (6, 6, 1, True)),
        ("gather_2x2.xml", "all_gather", "Simple", (4, 4, 1, False)),
        ("gather_2x2_in_place_2x.xml", "all_gather", "Simple", (4, 8, 2, True)),
        ("scatter.xml", "reduce_scatter", "Simple", (4, 8, 4, False)),
        ("scatter_in_place.xml", "reduce_scatter", "LL128", (4, 4, 4, True)),
        ("exchange.xml", "all_to_all", "Simple", (4, 4, 1, False)),
    ],
)
def test_what_msccls_tool_wrote_is_what_its_program_says(name, collective, protocol, shape):
    """Ranks, chunks with their instances, channels, and whether it works in place."""
    made = named(name)
    assert (made.collective, made.protocol) == (collective, protocol)
    assert (made.world_size, made.num_chunks, made.num_channels, made.in_place) == shape
    assert f"{made.name}.xml" == name


def test_the_tools_word_for_reduce_scatter_is_refused():
    """By name: a device refuses it too, and who uses the tool changes it by hand."""
    for name in ("scatter.xml", "scatter_in_place.xml"):
        with pytest.raises(ConfigError) as caught:
            parse_msccl(as_written(name).encode(), name)
        assert str(caught.value) == (
            f"{name}:1: coll: expected one of allreduce, allgather, reducescatter, alltoall, "
            "got reduce_scatter"
        )


def test_what_the_tool_wrote_wrong_is_found():
    """Its own check passed: it makes instances and moves dependences afterwards."""
    torn = parse_msccl(as_written("gather_batched_2x.xml").encode(), "torn.xml")
    flaw = str(prove_program(torn).flaw)
    assert "OUTPUT chunk 1 of rank 0 holds chunk 0 of rank 1, and should hold chunk 1" in flaw
    assert flaw.endswith("(12 chunks are wrong in all)")
    mixed = parse_msccl(as_written("mixed_2x.xml").encode(), "mixed.xml")
    with pytest.raises(ScheduleError) as caught:
        prove_program(mixed)
    assert str(caught.value).splitlines() == [
        "mixed.xml: nothing orders two steps that touch output chunk 1 of gpu 1",
        "  gpu 1, thread block 0, step 0 (rrc) at mixed.xml:20",
        "  gpu 1, thread block 3, step 0 (s) at mixed.xml:30",
    ]
    reused = parse_msccl(as_written("reused_nop.xml").encode(), "reused.xml")
    with pytest.raises(ScheduleError) as caught:
        prove_program(reused)
    assert str(caught.value).splitlines() == [
        "reused.xml: deadlock: 2 steps wait for each other, each for the next",
        "  gpu 0, thread block 0, step 1 (re) at reused.xml:5 depends on (depid, deps)",
        "  gpu 0, thread block 1, step 0 (r) at reused.xml:9 depends on (depid, deps)",
        "  gpu 0, thread block 0, step 1 (re) at reused.xml:5, the first",
    ]


def complaint(old, new, text=EXCHANGE):
    """Return what is said of a program in which something is replaced once."""
    assert old in text
    with pytest.raises(ConfigError) as caught:
        parse_msccl(text.replace(old, new, 1).encode(), "f.xml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("allreduce", "alltoallv", "f.xml:1: coll: expected one of allreduce, allgather"),
        ('coll="allreduce"', "", "f.xml:1: coll: expected one of allreduce, "),
        ('proto="LL"', 'proto="LL64"', "f.xml:1: proto: expected one of Simple, LL, LL128, got LL"),
        ('ngpus="2"', 'ngpus="3"', "ngpus: expected 2, the number of <gpu>, got 3"),
        ('inplace="1"', 'inplace="2"', "inplace: expected a whole number from 0 to 1, got 2"),
        ('nchunksperloop="2"', 'nchunksperloop="1e3"', "from 1 to 65536, got 1e3"),
        ('gpu id="1"', 'gpu id="0"', "gpu[1].id: expected an id of its own, got 0, as in line 2"),
        ('gpu id="1"', 'gpu id="7"', "gpu[1].id: expected a whole number from 0 to 1, got 7"),
        ('tb id="2"', 'tb id="1"', "gpu[0].tb[2].id: expected an id of its own, got 1"),
        ('o_chunks="0"', 'o_chunks="3"', "gpu[0].o_chunks: expected a whole number from 0 to 2"),
        ('send="1"', 'send="0"', "gpu[0].tb[0].send: expected another gpu, got 0, its own"),
        ('send="1"', 'send="-1"', "step[0].type: expected no `s` in a thread block without `send`"),
        ('chan="0"', 'chan="1"', "tb[0].chan: expected a whole number from 0 to 0, got 1"),
        (
            'tb id="1" send="-1"',
            'tb id="1" send="1"',
            "f.xml:7: gpu[0].tb[1].send: expected a peer and channel of its own, "
            "got 1 on channel 0, as thread block 0 has",
        ),
        (
            'type="s"',
            'type="put"',
            "f.xml:4: gpu[0].tb[0].step[0].type: expected one of s, r, rcs,",
        ),
        (' s="1"', ' s="2"', "step[1].s: expected 1, its position in the thread block, got 2"),
        ('srcbuf="i"', 'srcbuf="x"', "step[0].srcbuf: expected one of i, o, s, got x"),
        ('srcoff="0"', 'srcoff="1"', "expected chunks of the 2 of the input buffer, got 2 chunks"),
        ('dstoff="0"', 'dstoff="9" x=""', None),  # Of a send, which writes nothing here.
        ('cnt="2"', 'cnt="0"', "step[0].cnt: expected a whole number from 1 to 65536, got 0"),
        ('hasdep="1"', "", "step[1].hasdep: expected a whole number from 0 to 1, got nothing"),
        ('depid="0"', 'depid="3"', "step[0].depid: expected one of 3 thread blocks, got 3"),
        ('deps="1"', 'deps="2"', "deps: expected one of the 2 steps of thread block 0, got 2"),
        ("<tb ", "<block ", "f.xml:3: gpu[0]: expected in <gpu> <tb>, got <block>"),
        ("<step ", "<step><x/></step><step ", "step[0]: expected in <step> no element, got <x>"),
        ("<algo ", "<alg ", "f.xml:1: expected <algo>, got <alg>"),
        ("</algo>", "", "f.xml:31: expected valid XML, got no element found"),
        (
            "<algo",
            '<!DOCTYPE a [<!ENTITY b "c">]><algo',
            "expected a file without a document type",
        ),
        ("<algo", '<?xml version="1.0" encoding="latin-9x"?><algo', "f.xml:1: expected "),
    ],
)
def test_what_is_wrong_is_said_with_line_and_key(old, new, message):
    """Types and collectives that are not supported by their names."""
    if message is None:
        parse_msccl(EXCHANGE.replace(old, new, 1).encode())
    else:
        assert message in complaint(old, new)


def test_ranks_need_equal_numbers_of_chunks():
    """Where each has its own."""
    message = "nchunksperloop: expected a multiple of ngpus 4, got 6"
    assert message in complaint('sperloop="8"', 'sperloop="6"', text_of("hierarchical"))


def test_channels_are_counted_where_the_file_does_not_say(tmp_path):
    """And a file that is not there is said."""
    text = text_of("hierarchical").replace('nchannels="2"', "")
    assert parse_msccl(text.encode()).num_channels == 2
    with pytest.raises(ConfigError, match=r"none\.xml: expected a file that can be read"):
        read_msccl(tmp_path / "none.xml")


TEXTS = st.sampled_from([text_of(name).encode() for name in RIGHT])
PLACES = st.integers(0, 9999)
CUTS = st.lists(st.tuples(PLACES, st.integers(0, 40)), min_size=1, max_size=3)
BYTES = st.integers(0, 255) | st.sampled_from(b"-0123456789")
NUMBERS = st.integers(-2, 12).map(str)


def check_proved_or_refused(text):
    """Nothing but ConfigError, and no endless work."""
    try:
        proof = prove_program(parse_msccl(text))
    except ConfigError as error:
        said = str(error)
    else:
        said = "proved" if proof.flaw is None else proof.flaw.what
    assert said


@given(
    text=TEXTS,
    cuts=CUTS,
    swaps=st.lists(st.tuples(PLACES, BYTES), max_size=3),
    end=st.none() | PLACES,
)
def test_any_file_is_proved_or_refused(text, cuts, swaps, end):
    """Cut short, with holes, and with other bytes."""
    data = bytearray(text)
    for place, byte in swaps:
        data[place % len(text)] = byte
    for place, length in cuts:
        first = place % len(text)
        del data[first : first + length]
    check_proved_or_refused(bytes(data[:end]))


@given(
    text=TEXTS.map(bytes.decode),
    draws=st.lists(st.tuples(st.integers(0, 10**6), NUMBERS), max_size=4),
)
def test_any_numbers_are_proved_or_refused(text, draws):
    """Well-formed files whose steps make no sense."""
    parts = text.split('"')
    for where, number in draws:
        index = 1 + 2 * (where % (len(parts) // 2))
        if parts[index].lstrip("-").isdigit():
            parts[index] = number
    check_proved_or_refused('"'.join(parts).encode())
