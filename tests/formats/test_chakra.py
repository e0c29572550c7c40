"""What both forms of a Chakra trace hold."""

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simrank.errors import ConfigError, DeadlockError
from simrank.formats.chakra import (
    RawNode,
    chakra_trace,
    check_version,
    is_chakra_json,
    read_text_form,
    read_wire,
)
from simrank.formats.operations import CALC, COLLECTIVE, RECV, SEND
from simrank.hardware import load_cluster
from simrank.replay.run import replay
from tests.property.broken import broken, read_or_refused

NODE = RawNode("f.et", 3, 7, "x", "COMP_NODE", (), 0, {"a": 5, "b": "12", "c": -1, "d": "no"})


def test_attributes_are_whole_numbers_within_bounds():
    """Or texts of them, as some tools write."""
    assert (NODE.whole("a", 0, 9), NODE.whole("b", 0, 99)) == (5, 12)
    assert NODE.whole("missing", 0, 9, default=4) == 4
    for key in ("c", "d", "missing"):
        with pytest.raises(ConfigError, match=rf"f.et:3: node 7.{key}: expected a whole number"):
            NODE.whole(key, 0, 9)


def test_only_a_known_schema_is_read():
    """As a version, or at the end of what PyTorch's converter writes."""
    check_version("0.0.4", "", "f", None)
    check_version("", "1.0.2-chakra.0.0.4", "f", None)
    for version, schema, got in (("0.0.5", "", "0.0.5"), ("", "1.1.1-chakra.0.0.3", "0.0.3")):
        with pytest.raises(
            ConfigError, match=f"version: expected Chakra's schema 0.0.4, got {got}"
        ):
            check_version(version, schema, "f", None)
    with pytest.raises(ConfigError, match="got nothing"):
        check_version("", "", "f", None)


# ---- Chakra's traces of all ranks, as one that can be replayed ----

NODE_TEXT = load_cluster("hgx_h100")


def raw(number, kind, *deps, us=0, name="", **attributes):
    return RawNode("t.0.et", None, number, name, kind, deps, us, attributes)


def coll(number, *deps, **attributes):
    return raw(number, "COMM_COLL_NODE", *deps, **{"comm_type": 0, "comm_size": 64} | attributes)


def trace_of(*ranks, **groups):
    return chakra_trace(ranks, groups, "t")


def test_each_type_of_node_becomes_what_a_rank_does():
    """Memory has a stream of its own."""
    trace = trace_of(
        [
            raw(9, "COMP_NODE", us=5, name="forward"),
            raw(4, "MEM_LOAD_NODE", 9, tensor_size=100),
            raw(5, "COMM_SEND_NODE", 9, 4, comm_dst=1, comm_size="8", comm_tag=3),
            raw(6, "METADATA_NODE"),
            coll(7),
        ],
        [raw(1, "COMM_RECV_NODE", comm_src=0, comm_size=8, comm_tag=3), coll(2)],
    )
    comp, load, send, other, all_reduce = trace.ranks[0]
    assert (comp.label, comp.kind, comp.duration_ps, comp.stream) == ("forward", CALC, 5_000_000, 0)
    assert (load.kind, load.size_bytes, load.stream, load.requires) == (CALC, 100, 1, (0,))
    assert (send.kind, send.peer, send.size_bytes, send.tag) == (SEND, 1, 8, 3)
    assert send.requires == (0, 1)
    assert (other.kind, other.duration_ps, other.place) == (CALC, 0, "t.0.et, node 6")
    assert (all_reduce.kind, all_reduce.collective, all_reduce.group) == (
        COLLECTIVE, "all_reduce", (0, 1),
    )  # fmt: skip
    assert trace.ranks[1][0].kind == RECV


def test_a_group_is_who_names_it_or_what_a_file_says():
    """A name that stands for several groups needs the file."""
    ranks = [[coll(1, pg_name="tp")], [coll(1)], [coll(1, pg_name="tp")]]
    assert trace_of(*ranks).groups == [(0, 1, 2), (0, 2)]
    assert trace_of(*ranks, tp=(0, 1, 2)).groups == [(0, 1, 2)]
    with pytest.raises(ConfigError, match="pg_name: expected a group with rank 2"):
        trace_of(*ranks, tp=(0, 1))


def test_collectives_of_a_group_are_issued_in_one_order():
    """That of the file, where dependencies do not say another."""
    a, b, c = trace_of([coll(1, 2), coll(2), coll(3)], [coll(2)], [coll(3)]).ranks[0]
    assert (b.irequires, c.irequires, a.irequires) == ((), (1,), (2,))


def test_what_a_node_does_not_say_costs_the_roofline():
    """Arithmetic at its peak, memory at its rate."""
    (ops,) = replay(trace_of([raw(1, "COMP_NODE", num_ops=10**12)]), NODE_TEXT)
    assert ops.time_ps == ops.calc_ps == pytest.approx(10**12 / 989e12 * 1e12, rel=1e-6)
    (store,) = replay(trace_of([raw(1, "MEM_STORE_NODE", tensor_size=29 * 10**6)]), NODE_TEXT)
    assert store.time_ps == 10_000_000
    (both,) = replay(
        trace_of([raw(1, "COMP_NODE", us=20), raw(2, "MEM_STORE_NODE", tensor_size=29 * 10**6)]),
        NODE_TEXT,
    )
    assert both.time_ps == 20_000_000


@pytest.mark.parametrize("kind", [0, 2, 5, 6, 7, 9, "ALL_GATHER"])
def test_every_collective_is_played_as_a_program_would(kind):
    """Even of sizes that its ranks do not divide."""
    ranks = [[coll(1, comm_type=kind, comm_size=1001)] for _ in range(3)]
    times = replay(trace_of(*ranks), NODE_TEXT)
    assert all(each.time_ps > 0 for each in times)


def test_a_collective_that_a_rank_lacks_is_a_deadlock_with_its_node():
    """By its name and place."""
    trace = trace_of([coll(1, name="grads", pg_name="dp")], [], dp=(0, 1))
    with pytest.raises(DeadlockError) as caught:
        replay(trace, NODE_TEXT)
    report = str(caught.value)
    assert "grads: all_reduce of 64 B on ranks 0, 1 (t.0.et, node 1)" in report


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([coll(1), coll(1)], "node 1.id: expected a number of its own, got 1"),
        ([coll(1, 5)], "node 1.deps: expected numbers of nodes of the file, got 5"),
        ([coll(1, 2), coll(2, 1)], "node 1: expected an order in which nodes can run, got a cycle"),
        ([coll(1, comm_type=1)], "node 1.comm_type: expected one of ALL_REDUCE, ALL_GATHER"),
        ([coll(1, comm_type="SUM")], "node 1.comm_type: expected one of ALL_REDUCE"),
        ([coll(1, pg_name=3)], "node 1.pg_name: expected a text, got 3"),
        ([raw(1, "COMM_SEND_NODE", comm_dst=0, comm_size=1)], "comm_dst: expected another rank"),
        ([raw(1, "COMM_SEND_NODE", comm_dst=9, comm_size=1)], "comm_dst: expected a whole number"),
        ([raw(1, "COMM_RECV_NODE", comm_src=1)], "node 1.comm_size: expected a whole number"),
        ([raw(1, "COMP_NODE", us=10**13)], "node 1.duration_micros: expected microseconds up to"),
    ],
)
def test_what_is_wrong_is_said_with_its_node(nodes, message):
    """And its file."""
    with pytest.raises(ConfigError) as caught:
        trace_of(nodes, [])
    assert message in str(caught.value)
    assert str(caught.value).startswith("t.0.et")


# ---- Chakra's JSON form ----

DATA = (Path(__file__).parent / "chakra" / "pipeline.1.json").read_bytes()
TEXT = """\
{"version": "0.0.4"}
{"id": "3", "name": "n", "type": "COMM_COLL_NODE", "ctrl_deps": ["1"], "dataDeps": [2],
 "duration_micros": "5", "attr": [{"name": "comm_size", "int64Val": "-8"},
 {"name": "f", "doubleVal": 1.5}, {"name": "l", "boolList": {"values": [true]}}]}
"""


def complaint(old, new):
    assert old in TEXT
    with pytest.raises(ConfigError) as caught:
        read_text_form(TEXT.replace(old, new), "f.json")
    return str(caught.value)


def test_both_spellings_of_protobufs_json_are_read():
    """Numbers as texts, too; what is zero is left out."""
    (node,) = read_text_form(TEXT, "f.json")
    assert (node.id, node.type, node.deps, node.line) == (3, "COMM_COLL_NODE", (1, 2), 2)
    assert node.duration_us == 5
    assert node.attributes == {"comm_size": -8, "f": 1.5, "l": None}
    (bare,) = read_text_form('{"version": "0.0.4"} {"type": 4}', "f")
    assert (bare.id, bare.name, bare.type, bare.duration_us) == (0, "", "COMP_NODE", 0)


@pytest.mark.parametrize("key", ["doubleVal", "floatVal", "float_val"])
def test_fractions_that_are_no_numbers_are_read_as_protobuf_spells_them(key):
    """As texts; other texts are no fractions, and whole numbers are never infinite."""
    spelled = '"f", "%s": "%s"}'
    for word in ("Infinity", "-Infinity", "NaN"):
        text = TEXT.replace('"f", "doubleVal": 1.5}', spelled % (key, word))
        (node,) = read_text_form(text, "f.json")
        assert node.attributes["f"] == pytest.approx(float(word), nan_ok=True)
    said = complaint('"f", "doubleVal": 1.5}', spelled % (key, "1.5"))
    assert said.endswith('expected a value of its type, got "1.5"')
    assert "expected a whole number" in complaint('"int64Val": "-8"', '"int64Val": "Infinity"')


def test_the_schema_may_stand_among_the_attributes_of_the_metadata():
    """As PyTorch's converter writes it."""
    meta = '{"attr": [{"name": "schema", "stringVal": "1.0.2-chakra.0.0.4"}]}'
    assert read_text_form(meta, "f") == []
    with pytest.raises(ConfigError, match=r"f:1: version: expected Chakra's schema 0.0.4, got 0"):
        read_text_form(meta.replace("0.0.4", "0.0.9"), "f")
    assert is_chakra_json(meta)
    assert not is_chakra_json("num_ranks 2")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"version": "0.0.4"',
            "",
            "f.json:1: version: expected Chakra's schema 0.0.4, got nothing",
        ),
        ('"COMM_COLL_NODE"', '"COLL"', "f.json:2: type: expected one of INVALID_NODE"),
        ('"COMM_COLL_NODE"', "99", "f.json:2: type: expected one of INVALID_NODE"),
        ('"3"', '"x"', "f.json:2: id: expected a whole number from 0, got 'x'"),
        ('"3"', "-3", "f.json:2: id: expected a whole number from 0, got -3"),
        ("[2]", "2", "f.json:2: datadeps: expected a list of numbers"),
        ('"-8"', "true", "f.json:2: attr[0].int64val: expected a whole number"),
        ("1.5", '"a"', "f.json:2: attr[1].doubleval: expected a value of its type"),
        ('{"name": "f",', "{", "f.json:2: attr[1].name: expected a string"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old, new, message):
    """And what was expected."""
    assert message in complaint(old, new)


def test_nothing_is_no_trace():
    """Not even metadata."""
    with pytest.raises(ConfigError, match="expected Chakra's global metadata, got nothing"):
        read_text_form(" ", "f")


@settings(max_examples=200, deadline=None)
@given(broken(DATA))
def test_a_broken_file_is_read_or_refused(data):
    """Never anything else."""
    read_or_refused(read_text_form, data.decode("utf-8", "replace"), "f.json")


# ---- Chakra's binary form ----

HERE = Path(__file__).parent / "chakra"
BINARY = (HERE / "pipeline.1.et").read_bytes()
GENERATED = HERE / "generated"
META = b"\x07\x0a\x050.0.4"


def varint(value):
    value &= (1 << 64) - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number, value):
    """A field as protobuf writes it: bytes behind their length, numbers as varints."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def message(*fields):
    body = b"".join(fields)
    return varint(len(body)) + body


def attribute(number, value):
    return field(10, field(1, b"x") + value if isinstance(value, bytes) else
                 field(1, b"x") + field(number, value))  # fmt: skip


def only(*fields):
    (node,) = read_wire(META + message(*fields), "f.et")
    return node


@pytest.mark.parametrize("rank", [0, 1])
def test_what_googles_protobuf_wrote_is_the_same_in_both_forms(rank):
    """But for lines, which a binary file has not."""
    binary = read_wire((HERE / f"pipeline.{rank}.et").read_bytes(), "f")
    text = read_text_form((HERE / f"pipeline.{rank}.json").read_text(), "f")
    assert len(binary) == len(text) == 4
    for mine, other in zip(binary, text, strict=True):
        assert (mine.id, mine.name, mine.type, mine.deps) == (
            other.id, other.name, other.type, other.deps,
        )  # fmt: skip
        assert (mine.duration_us, mine.attributes) == (other.duration_us, other.attributes)


def test_every_type_of_attribute_that_chakras_generator_writes_is_read():
    """And as its jsonizer says it, but for bytes, which no replay asks for."""
    name = "one_metadata_node_all_types.0"
    (binary,) = read_wire((GENERATED / f"{name}.et").read_bytes(), "f")
    (text,) = read_text_form((GENERATED / f"{name}.json").read_text(), "f")
    assert (binary.id, binary.name, binary.type) == (0, "METADATA_NODE", "METADATA_NODE")
    assert (text.id, text.name, text.type) == (0, "METADATA_NODE", "METADATA_NODE")
    said = {key: value for key, value in binary.attributes.items() if value is not None}
    assert said.pop("float") == pytest.approx(1.2345)
    assert said == {
        "double": 1.2345, "int32": 12345, "int64": 9876543210, "uint32": 12345,
        "uint64": 9876543210, "sint32": -12345, "sint64": -9876543210, "fixed32": 12345,
        "fixed64": 9876543210, "sfixed32": -12345, "sfixed64": -9876543210, "bool": True,
        "string": "12345",
    }  # fmt: skip
    lists = {f"{key}_list" for key in [*said, "float", "bytes"]}
    assert {key for key, value in binary.attributes.items() if value is None} == {*lists, "bytes"}
    assert text.attributes == pytest.approx(binary.attributes)


@pytest.mark.parametrize("path", sorted(GENERATED.glob("*.et")), ids=lambda path: path.name)
def test_a_file_of_chakras_generator_cut_short_is_refused_with_its_byte(path):
    """Wherever it is cut, but between two nodes: what is left there is a whole trace."""
    data = path.read_bytes()
    whole = {0: -1}  # By where each message ends, how many nodes are whole there.
    at = 0
    while at < len(data):
        length, start = data[at] & 0x7F, at + 1
        if data[at] > 0x7F:
            length, start = length | data[at + 1] << 7, at + 2
        at = start + length
        whole[at] = len(whole) - 1
    for cut in range(1, len(data)):
        if cut in whole:
            assert len(read_wire(data[:cut], "f.et")) == whole[cut]
            continue
        with pytest.raises(ConfigError, match=r"^f\.et: byte \d+: expected .*, got "):
            read_wire(data[:cut], "f.et")


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**64 - 1), max_size=5), st.booleans())
def test_numbers_and_their_lists_are_read_as_written(number, deps, is_packed):
    """Packed, or one by one."""
    packed = [field(5, b"".join(map(varint, deps)))]
    node = only(field(1, number), *(packed if is_packed else [field(5, dep) for dep in deps]))
    assert (node.id, node.deps) == (number, tuple(deps))


@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_numbers_keep_their_sign(value):
    """As int64, zigzag and fixed."""
    assert only(attribute(9, value)).attributes == {"x": value}
    zigzag = (value << 1) ^ (value >> 63)
    assert only(attribute(17, zigzag)).attributes == {"x": value}
    fixed = varint(25 << 3 | 1) + struct.pack("<q", value)
    assert only(attribute(25, fixed)).attributes == {"x": value}


def test_other_values_are_read_by_their_field():
    """Texts, truths, fractions; a list is none of a replay's business."""
    assert only(attribute(0, field(29, b"text"))).attributes == {"x": "text"}
    assert only(attribute(27, 1)).attributes == {"x": True}
    half = varint(3 << 3 | 1) + struct.pack("<d", 0.5)
    assert only(attribute(3, half)).attributes == {"x": 0.5}
    assert only(attribute(0, field(28, b"\x0a\x01\x01"))).attributes == {"x": None}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "byte 0: expected Chakra's global metadata, got an empty file"),
        (META[:-1], "f.et: byte 1: expected a message of 7 bytes, got the end of the file"),
        (b"\x07\x0a\x050.0.1", "f.et: version: expected Chakra's schema 0.0.4, got 0.0.1"),
        (META + b"\xff" * 12, "byte 8: expected a number of protobuf, got one without an end"),
        (META + b"\x02\x0b\x00", "byte 9: expected a field of protobuf 3, got wire type 3"),
        (META + b"\x02\x12\x09", "byte 9: expected 9 bytes of field 2, got the end of its message"),
        (META + b"\x03\x12\x01\xff", "byte 11: expected UTF-8 in field 2, got other bytes"),
        (META + b"\x02\x18\x63", "byte 9: expected a type of node up to 7, got 99"),
        (META + b"\x02\x10\x01", "byte 11: expected a text in field 2, got a number"),
        (META + b"\x03\x0a\x01a", "byte 11: expected a number in field 1, got bytes"),
        (META + b"\x02\x50\x01", "byte 11: expected an attribute, got a number"),
    ],
)
def test_what_is_wrong_is_said_with_its_byte(data, message):
    """And what was expected there."""
    with pytest.raises(ConfigError) as caught:
        read_wire(data, "f.et")
    assert message in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(broken(BINARY))
def test_a_broken_file_is_read_or_refused_in_binary_form(data):
    """Never anything else."""
    read_or_refused(read_wire, data, "f.et")
