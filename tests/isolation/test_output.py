"""What ranks print: whole lines, streams of their own, a prefix and a log if one is asked for."""

# Users' programs print.
# ruff: noqa: T201, PLW0108

import contextlib
import io
import logging
import sys
import time
import types

import pytest

import simrank
from simrank.isolation import output


def test_lines_of_ranks_that_print_what_is_still_computed_are_whole(run, capsys):
    """`print` waits for the tensor in the midst of its line."""

    def program(rank, ctx):
        x = ctx.ones(2) * rank
        print("rank", rank, "has", x[0], end=" ")
        print("and", x[1].item())

    run(program, 8)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    assert sorted(line[:6] for line in lines) == [f"rank {rank}" for rank in range(8)]
    assert all(line.endswith(f"and {line[5]}.0") for line in lines)


def test_what_is_flushed_is_shown_and_nobody_else_continues_it(run, capsys):
    """A rank may show half a line, and end it if no other rank has written since."""

    def program(rank, ctx):
        time.sleep(rank)
        print(f"{rank}...", end="", flush=True)
        if rank == 0:
            print("done")
        time.sleep(10)
        print("end")

    run(program, 3)
    assert capsys.readouterr().out == "0...done\n1...\n2...\nend\nend\nend\n"


def test_what_a_rank_leaves_without_an_end_is_a_line(run, capsys):
    """Also if it raises."""

    def program(rank, ctx):
        sys.stdout.write(f"half of {rank}")
        sys.stderr.writelines(["to ", "stderr"])
        if rank:
            raise ValueError("bad batch")

    with pytest.raises(simrank.errors.SpawnException):
        run(program, 2)
    captured = capsys.readouterr()
    assert captured.out == "half of 0\nhalf of 1\n"
    assert captured.err == "to stderr\nto stderr\n"


def test_a_stream_that_a_rank_puts_in_place_is_its_own(run, capsys):
    """In a block that it holds while it waits, and for ever; the program's are what they were."""
    before = sys.stdout, sys.stderr, type(sys)

    def program(rank, ctx, texts):
        if rank == 2:
            time.sleep(2)
            print("plain")
            return
        with contextlib.redirect_stdout(io.StringIO()) as text:
            print("of", end=" ")
            time.sleep(1 + rank)
            print(rank)
            assert sys.stdout is text
            text.flush()
        texts[rank] = text.getvalue()
        sys.stderr = io.StringIO()
        sys.stderr.write("dropped")

    texts = {}
    run(lambda rank, ctx: program(rank, ctx, texts), 3)
    assert texts == {0: "of 0\n", 1: "of 1\n"}
    assert capsys.readouterr() == ("plain\n", "")
    assert (sys.stdout, sys.stderr, type(sys)) == before


def test_the_main_program_may_change_its_streams_within_a_context(ctx):
    """Ranks write to what it has put there; it finds what it has put there."""
    with contextlib.redirect_stdout(io.StringIO()) as text:
        assert sys.stdout is text
        ctx.multiprocessing.spawn(lambda rank: print(rank), nprocs=2)
        print("main")
    assert text.getvalue() == "0\n1\nmain\n"


def test_a_rank_sees_what_the_programs_stream_is(run):
    """Its encoding, whether it is a terminal; it is writable, and nobody closes it."""
    expected = sys.stdout.encoding, sys.stdout.errors, sys.stdout.isatty()

    def program(rank, ctx):
        assert (sys.stdout.encoding, sys.stdout.errors, sys.stdout.isatty()) == expected
        assert sys.stdout.writable()
        assert isinstance(sys.stdout, io.TextIOBase)
        sys.stdout.close()
        print("still open")
        print("at once", file=sys.__stdout__)

    run(program, 1)


def test_a_logger_that_a_rank_has_set_up_works_on_after_the_run(run, capsys):
    """It keeps the stream that it found."""
    logger = logging.Logger("of a rank")
    found = []

    def program(rank, ctx):
        logger.addHandler(logging.StreamHandler())
        logger.warning("in a rank")
        found.extend(logger.handlers)

    run(program, 1)
    found[0].setStream(found[0].stream)
    assert "in a rank" in capsys.readouterr().err


def test_lines_have_a_prefix_and_a_log_where_one_is_asked_for(ctx, capsys):
    """A prefix per line, a file per rank; nested ranks have their parent's."""
    logs = {rank: io.StringIO() for rank in range(2)}
    output.set_output(
        ctx.program, output.Output(lambda rank: f"[{rank}] ", lambda rank, name: logs[rank])
    )

    def program(rank):
        print("a\nb", end="", flush=True)
        print("c")

    ctx.multiprocessing.spawn(program, nprocs=2)
    assert capsys.readouterr().out == "[0] a\n[0] bc\n[1] a\n[1] bc\n"
    assert {rank: log.getvalue() for rank, log in logs.items()} == dict.fromkeys(logs, "a\nbc\n")


def test_lines_may_go_to_logs_alone(ctx, capsys):
    """As with `--redirects 1`: what is shown is a matter of rank and stream."""
    log = io.StringIO()
    output.set_output(
        ctx.program,
        output.Output(log=lambda rank, name: log, shows=lambda rank, name: name == "stderr"),
    )

    def program(rank):
        print("hello")
        print("trouble", file=sys.stderr)

    ctx.multiprocessing.spawn(program, nprocs=1)
    assert (log.getvalue(), capsys.readouterr()) == ("hello\ntrouble\n", ("", "trouble\n"))


def test_what_a_rank_spawned_writes_as_that_rank(ctx, capsys):
    """As child processes do: its ranks, a Context that it makes, and that one's ranks."""
    output.set_output(ctx.program, output.Output(lambda rank: f"[{rank}] "))

    def inner(rank, text):
        print(text, rank)

    def program(rank):
        if rank == 2:
            simrank.multiprocessing.spawn(inner, args=("nested",), nprocs=2)
            with contextlib.redirect_stdout(io.StringIO()) as own, simrank.Context():
                print("kept")
            assert own.getvalue() == "kept\n"
            with simrank.Context() as other:
                print("main")
                other.multiprocessing.spawn(inner, args=("other",), nprocs=2)

    ctx.multiprocessing.spawn(program, nprocs=3)
    lines = ["nested 0", "nested 1", "main", "other 0", "other 1"]
    assert capsys.readouterr().out == "".join(f"[2] {line}\n" for line in lines)


def test_who_has_closed_the_pipe_is_told(monkeypatch):
    """Ranks get BrokenPipeError, as programs do; a front door need not call that a failure."""

    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    assert not output.is_unread()
    with pytest.raises(simrank.errors.SpawnException), simrank.Context() as other:
        other.multiprocessing.spawn(lambda rank: print("hello"), nprocs=1)
    assert output.is_unread()
    with contextlib.redirect_stdout(io.StringIO()), simrank.Context():
        assert not output.is_unread()


def test_bytes_go_where_a_rank_s_text_goes(capsys):
    """`sys.stdout.buffer` of a rank: its lines are whole, too."""

    def program(rank):
        sys.stdout.buffer.write(f"bytes of {rank} ".encode())
        sys.stdout.write("and ")
        time.sleep(1e-3)
        sys.stdout.buffer.write(b"text\n")
        sys.stdout.buffer.flush()

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2)
    assert capsys.readouterr().out == "bytes of 0 and text\nbytes of 1 and text\n"


@pytest.mark.parametrize("name", ["sys", "warnings", "threading"])
def test_modules_that_are_imported_or_made_within_a_context_are_plain_ones(
    name, ctx, tmp_path, monkeypatch
):
    """Python calls the type of `sys` for each; their own `stdout` and `filters` stay theirs."""
    (tmp_path / "has_names_of_sys.py").write_text("stdout, filters, excepthook = 1, 2, 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "has_names_of_sys", raising=False)
    import has_names_of_sys

    made = type(sys.modules[name])("made", "Its text.")
    made.stdout = 4
    for module in (has_names_of_sys, made):
        assert type(module) is types.ModuleType
    assert (has_names_of_sys.stdout, has_names_of_sys.filters, made.stdout) == (1, 2, 4)
    assert (made.__name__, made.__doc__) == ("made", "Its text.")
    monkeypatch.delitem(sys.modules, "has_names_of_sys")
