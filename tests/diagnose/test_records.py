"""Reading flight records: safe, of any name, with what is wrong with files said."""

import json
import pickle
from pathlib import Path

import pytest

from simrank.diagnose import diagnose, read_records
from simrank.diagnose.records import StackLine, host_text
from simrank.errors import FlightRecordError
from tests.diagnose.formats import FORMS, LINES, write_job


def entry(number, op="all_reduce", group=("0", "default_pg"), state="completed", **more):
    """Return a call as torch records it."""
    return {
        "record_id": number - 1, "pg_id": 0, "process_group": group, "collective_seq_id": number,
        "p2p_seq_id": 0, "op_id": number, "profiling_name": f"nccl:{op}", "time_created_ns": number,
        "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]],
        "output_dtypes": ["Float"], "state": state, "retired": state == "completed",
        "timeout_ms": 1000, "is_p2p": False,
        "frames": [
            {"name": "all_reduce", "filename": "/x/torch/distributed/c10d.py", "line": 1},
            {"name": "reduce", "filename": "/x/site-packages/megatron/core.py", "line": 7},
            {"name": "step", "filename": "/home/me/train.py", "line": 95},
        ],
    } | more  # fmt: skip


def record(entries, ranks=(0, 1), **more):
    """Return what torch writes of one rank."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(ranks))}}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries} | more


def write(folder, rank, entries, name="nccl_trace_rank_{}", **more):
    path = folder / name.format(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(record(entries, **more), protocol=2))
    return path


def test_pickles_and_json_give_the_same_calls(tmp_path):
    """JSON has lists where a pickle has tuples."""
    write(tmp_path / "p", 0, [entry(1), entry(2, state="started")])
    (tmp_path / "j").mkdir()
    text = json.dumps(record([entry(1), entry(2, state="started")]))
    (tmp_path / "j" / "rank0.json").write_text(text)
    lanes = [read_records([tmp_path / each]).lanes[0] for each in "pj"]
    assert [(list(a.numbers), list(a.is_over)) for a in lanes] == [([1, 2], [1, 0])] * 2


@pytest.mark.parametrize(
    "name",
    ["nccl_trace_rank_{}", "job7/rank{}.pkl", "node{}/dump", "trace_{}_of_8", "r{}-2026.bin"],
)
def test_the_rank_is_the_last_number_that_tells_files_apart(name, tmp_path):
    """In a file name or a folder name."""
    for rank in range(3):
        write(tmp_path, rank, [entry(1)], name, ranks=(0, 1, 2))
    assert sorted(read_records([tmp_path]).lanes) == [0, 1, 2]


def test_one_file_alone_has_the_rank_at_the_end_of_its_name(tmp_path):
    """The other ranks have no record."""
    assert sorted(read_records([write(tmp_path, 5, [entry(1)], ranks=range(8))]).lanes) == [5]


def test_a_pickle_that_names_a_function_runs_nothing(tmp_path):
    """It is left out, and the note says so; the other ranks are read."""
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return Path.touch, (marker,)

    write(tmp_path, 0, [entry(1)])
    (tmp_path / "nccl_trace_rank_1").write_bytes(pickle.dumps({"entries": [Evil()]}))
    found = read_records([tmp_path])
    assert not marker.exists()
    assert found.missing == (1,)
    assert "nothing was run" in found.notes[0]


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}q\x00(X\x07\x00\x00\x00entriesq\x01",  # Cut off.
        pickle.dumps({"entries": [{"record_id": 1}]}),
        pickle.dumps({"entries": "none", "pg_config": 3}),
        b'{"entries": [1, 2',
        b"",
        pickle.dumps({"entries": [entry(1, input_sizes=3)]}),
    ],
    ids=["cut off", "keys", "types", "cut JSON", "empty", "sizes"],
)
def test_a_broken_file_is_a_note_and_the_others_are_read(content, tmp_path):
    """Cut off, of other keys, or of other types."""
    write(tmp_path, 0, [entry(1)])
    (tmp_path / "nccl_trace_rank_1").write_bytes(content)
    found = read_records([tmp_path])
    assert (sorted(found.lanes), found.missing) == ([0], (1,))
    assert found.notes[0].startswith("nccl_trace_rank_1: not read: ")


def test_no_record_at_all_is_an_error(tmp_path):
    """Settings are no record; nor is a path that does not exist."""
    (tmp_path / "settings.json").write_text('{"lr": 1}')
    with pytest.raises(FlightRecordError, match="there is no flight record here"):
        read_records([tmp_path])
    with pytest.raises(FileNotFoundError, match="there is no such file or folder"):
        read_records([tmp_path / "nowhere"])


def test_of_two_records_of_a_rank_the_one_with_lines_is_taken(tmp_path):
    """The debug server's JSON has no stacks; it beside the pickle is no remark."""
    write(tmp_path, 0, [entry(1), entry(2)])
    text = json.dumps(record([entry(1, frames=[])]))
    (tmp_path / "rank_0.json").write_text(text)
    found = read_records([tmp_path])
    assert (len(found.lanes[0]), found.notes) == (2, [])


def test_the_line_is_the_programs_and_stacks_keep_its_packages(tmp_path):
    """Calls from other places of a package are other calls."""
    write(tmp_path, 0, [entry(1)])
    found = read_records([tmp_path])
    assert str(found.place(found.lanes[0], 0)) == "train.py:95 in step"
    assert [frame.function for frame in found.stacks[1]] == ["reduce", "step"]


def test_members_that_are_not_recorded_are_those_that_were_seen(tmp_path):
    """As in gloo's records."""
    for rank in range(4):
        own = ("1" if rank < 2 else "2", "undefined")
        calls = [entry(1, profiling_name="gloo:all_reduce"), entry(2, group=own)]
        write(tmp_path, rank, calls, pg_config={"": {"name": "", "desc": "", "ranks": "[]"}})
    groups = read_records([tmp_path]).groups
    assert [(group.ranks, group.is_inferred) for group in groups] == [
        ((0, 1, 2, 3), True), ((0, 1), True), ((2, 3), True),
    ]  # fmt: skip


def test_calls_of_a_coalesced_launch_are_one(tmp_path):
    """They have one number; it has ended when all have."""
    calls = [entry(1), entry(1, record_id=1, state="started"), entry(2)]
    write(tmp_path, 0, calls)
    lane = read_records([tmp_path]).lanes[0]
    assert (list(lane.numbers), list(lane.is_over)) == ([1, 2], [0, 1])


def test_messages_have_ranks_for_their_ends(tmp_path):
    """Torch records group ranks; a receive names itself first."""
    config = {"5": {"name": "5", "desc": "pp", "ranks": "[2, 6]"}}
    calls = [
        entry(1, "recv 1<-0", ("5", "pp"), is_p2p=True),
        entry(1, "coalesced", ("5", "pp"), is_p2p=True, record_id=1),
    ]
    write(tmp_path, 6, calls, pg_config=config)
    lane = read_records([tmp_path]).lanes[6]
    assert (list(lane.sources), list(lane.targets), len(lane)) == ([2], [6], 1)


def named(form, folder, skips):
    """Return the diagnosis of the job whose rank 1 leaves out a call."""
    folder.mkdir()
    write_job(FORMS[form], folder, skips=skips)
    found = diagnose(read_records([folder]), replay=False).as_dict()
    return found["kind"], found["ranks"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("skips", LINES)
def test_the_culprit_is_the_same_in_all_forms(form, skips, tmp_path):
    """Where the ends of messages are not recorded, no rank is named for one."""
    kind, ranks = named(form, tmp_path / "form", skips)
    if form == "torchcomms" and skips in ("batch", "message"):
        assert (kind, ranks) == ("arrived", [])
    elif form in ("nccl2", "torchcomms"):  # One entry, of other sizes, for the uneven gather.
        assert ranks == [1]
    else:
        kinds = {"batch": "message", "message": "message", "scatter": "absent"}
        assert (kind, ranks) == (kinds.get(skips, "skipped"), [1])


def test_messages_of_a_batch_have_the_state_of_its_end(tmp_path):
    """NCCL's recorder leaves their own as it was, and says of the end that it is no message."""
    batch = [
        entry(0, op, record_id=n, p2p_seq_id=1, is_p2p=n < 2, state=state)
        for n, (op, state) in enumerate(
            [("send 0->1", "scheduled"), ("recv 0<-1", "scheduled"), ("coalesced", "completed")]
        )
    ]
    write(tmp_path, 0, batch)
    lane = read_records([tmp_path]).lanes[0]
    assert (list(lane.numbers), list(lane.is_over)) == ([-1, -1], [1, 1])


def test_a_call_that_timed_out_has_not_ended(tmp_path):
    """NCCL's recorder retires it, too."""
    write(tmp_path, 0, [entry(1, state="started", retired=True)])
    assert list(read_records([tmp_path]).lanes[0].is_over) == [0]


def test_a_rooted_call_has_its_sizes_the_right_way_round(tmp_path):
    """NCCL's recorder names what comes out of a scatter first, and nothing as Undefined."""
    root = {"input_sizes": [[2]], "output_sizes": [[2]] * 4, "output_dtypes": ["Float"] * 4}
    other = {"input_sizes": [[2]], "output_sizes": [[0]], "output_dtypes": ["Undefined"]}
    write(tmp_path, 0, [entry(1, "scatter", **root), entry(2, "scatter", **other)])
    first, second = read_records([tmp_path]).asked
    assert (first.input_numel, first.output_numel) == (8, 2)
    assert (second.input_numel, second.output_numel) == (0, 2)


BATCH = [
    entry(3),
    entry(4, "send 0->1", is_p2p=True, record_id=3),
    entry(4, "coalesced", record_id=4),
    entry(5, record_id=5),
]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([{"profiling_name": "nccl:all_reduce", "seq_id": 1}], "version 1.0 .a list.*seq_id"),
        (record([{"seq_id": 1}], version="1.4"), "version 1.4, its calls have no record_id, "),
        (record([entry(1)], version="3.0"), "version 3.0; 2.0 to 2.10 are read"),
        (record([entry(1), entry(3)]), "calls are left out of it"),
        (record([], pg_status={"0": {}}), "calls are left out of it"),
        (record([entry(1, profiling_name="")], version="2.4"), "no name.*torch_npu.*2.4"),
        (record([entry(1, profiling_name="c10d:allreduce")]), "which calls have ended"),
        (record(BATCH, version="2.1"), "its first 2 calls are lost"),
        (
            record(
                [
                    entry(5, profiling_name=f"ncclx:{op}", process_group=("w", "ncclx"))
                    | {"record_id": n, "collective_seq_id": 4 + n}
                    for n, op in enumerate(["send", "all_reduce"])
                ]
            ),
            "its first 4 calls are lost",
        ),
    ],
    ids=["list", "1.4", "3.0", "gap", "none", "no name", "hook", "2.1", "torchcomms"],
)
def test_a_form_that_would_be_misread_is_refused_by_name(content, said, tmp_path):
    """Its ranks are not said to be dead."""
    write(tmp_path, 0, [entry(1)])
    (tmp_path / "nccl_trace_rank_1").write_bytes(pickle.dumps(content))
    with pytest.raises(FlightRecordError, match=f"nccl_trace_rank_1: .*{said}"):
        read_records([tmp_path])


def test_calls_of_a_launch_whose_first_are_lost_are_lost(tmp_path):
    """What is left of it would be taken for another call."""
    cut = [
        entry(7, "_broadcast_oop", record_id=5, state="scheduled"),
        entry(7, "ALLGATHER_coalesced", record_id=6),
        entry(8, record_id=7),
    ]
    write(tmp_path, 0, cut)
    assert list(read_records([tmp_path]).lanes[0].numbers) == [8]


STACKS = """Process 4127: python train.py
Thread 0x7F1 (idle): "pin_memory"
    wait (threading.py:312)
Thread 4127 (idle): "MainThread"
    select (selectors.py:415)
    __next__ (data.py:88)
    step (train.py:41)
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rank_1.txt", STACKS),
        ("stacks", f"=== Rank 0: host ===\nnone\n=== Rank 1: host ===\n{STACKS}"),
    ],
    ids=["of one rank", "of all"],
)
def test_stacks_beside_the_records_tell_where_hosts_are(name, text, tmp_path):
    """The main thread's."""
    for rank in range(2):
        write(tmp_path, rank, [entry(1)])
    if name == "rank_1.txt":
        (tmp_path / "rank_0.txt").write_text("")
    (tmp_path / name).write_text(text)
    assert read_records([tmp_path]).hosts == {
        1: (
            StackLine("selectors.py", 415, "select"),
            StackLine("data.py", 88, "__next__"),
            StackLine("train.py", 41, "step"),
        )
    }


def test_a_host_s_stack_is_told_by_the_program_s_line():
    """Not by Python's and torch's own below it."""
    own, below = (
        StackLine("train.py", 41, "step"),
        StackLine("torch/distributed/c10d.py", 9, "recv"),
    )
    assert host_text((StackLine("selectors.py", 415, "select"), own)) == (
        "train.py:41 in step, in select of selectors.py"
    )
    assert host_text((below, own)).startswith("train.py:41 in step, in recv of torch")
    assert host_text((own,)) == "train.py:41 in step"
    assert host_text((below,)) == "c10d.py:9 in recv"
