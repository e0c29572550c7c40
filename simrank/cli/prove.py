"""`simrank prove`: algorithms and files of them, proved."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Annotated

import typer

from simrank import units
from simrank.cli.common import EXIT_STATUS, FAILED, app, progress_bar
from simrank.cli.nccl_tests import bad_option
from simrank.collectives import Problem, algorithms_for, build
from simrank.collectives.problem import COLLECTIVES, GATHERED, ROOTED
from simrank.collectives.proof import prove as prove_schedule
from simrank.config.quantity import hint
from simrank.errors import ConfigError, ConfigProblem, ScheduleError
from simrank.formats.msccl import (
    SUFFIX,
    program_problem,
    read_msccl,
    schedule_of,
)

if TYPE_CHECKING:
    from simrank.collectives.proof import Proof
    from simrank.collectives.schedule import Schedule
    from simrank.formats.msccl.program import MscclProgram

_MAX_CHUNKS = 1 << 20  # Of all ranks: ring on 723 ranks has them, and takes a minute.
_MAX_FILE_BYTES = 1 << 27  # Of ring on 512 ranks, which takes five minutes.
_MAX_MOVED = 1 << 23  # Two minutes.
_LARGE = ("all_gather", "reduce_scatter", "all_to_all", *GATHERED)


@app.command(epilog=EXIT_STATUS)
def prove(
    algorithm: Annotated[str, typer.Argument(help="An algorithm, or an MSCCL XML file.")],
    collective: Annotated[
        str | None, typer.Option(help="Collective [all_reduce, or the file's].")
    ] = None,
    num_ranks: Annotated[
        int | None, typer.Option("-n", "--num-ranks", min=1, help="Ranks [8, or the file's].")
    ] = None,
    size: Annotated[str, typer.Option(help="Size as in nccl-tests, for example 16MiB.")] = "1MiB",
    root: Annotated[int, typer.Option(help="Root rank of a rooted collective.")] = 0,
) -> None:
    """Prove that an algorithm computes its collective for all data, or report the first error.

    For a file, also prove that every message is sent and received, that no steps wait for each
    other, and that the order of accesses to each chunk is defined.
    """
    try:
        problem, proof = _proof(algorithm, collective, num_ranks, size=size, root=root)
        if proof.flaw is not None:
            raise ScheduleError(f"{algorithm}: {proof.flaw}")
    except ScheduleError as error:
        typer.echo(f"not proved: {error}")
        raise typer.Exit(FAILED) from None
    typer.echo(_text(algorithm, problem, proof))


def _proof(
    algorithm: str, collective: str | None, num_ranks: int | None, *, size: str, root: int
) -> tuple[Problem, Proof]:
    """Return the proof of a schedule, and its title."""
    size_bytes = _size(size)
    with progress_bar() as bar:
        task = bar.add_task("file", total=None)
        if algorithm.endswith(SUFFIX):
            program = _program(algorithm, collective, num_ranks)
            problem = program_problem(program, size_bytes)
            bar.update(task, description="order of steps")
            schedule = schedule_of(program, problem)
        else:
            problem = problem_named(collective or "all_reduce", num_ranks or 8, size_bytes, root)
            schedule = schedule_named(problem, algorithm, "a file or ")
            _check_size(schedule)
        bar.update(task, description="rounds")
        return problem, prove_schedule(
            schedule, problem, lambda number: bar.update(task, completed=number)
        )


def _program(file: str, collective: str | None, num_ranks: int | None) -> MscclProgram:
    """Read a file of which a proof takes minutes at most.

    Raises:
        ConfigError: It cannot be read, is too large, or an option says something else.
    """
    size_bytes = os.stat(file).st_size if os.path.isfile(file) else 0
    if size_bytes > _MAX_FILE_BYTES:
        expected = f"a file of at most {_MAX_FILE_BYTES >> 20} MiB"
        raise ConfigError(ConfigProblem(file, None, "", expected, f"{size_bytes >> 20} MiB"))
    program = read_msccl(file)
    for option, given, own in (
        ("--collective", collective, program.collective),
        ("--num-ranks", num_ranks, program.world_size),
    ):
        if given not in (None, own):
            raise bad_option(option, f"{own}, as {file} says", str(given))
    blocks = (block for gpu in program.gpus for block in gpu.blocks)
    num_moved = sum(step.count for block in blocks for step in block.steps)
    if num_moved > _MAX_MOVED:
        expected = f"steps with at most {_MAX_MOVED} chunks in all, each of which a proof follows"
        raise ConfigError(ConfigProblem(file, None, "", expected, str(num_moved)))
    return program


def _check_size(schedule: Schedule) -> None:
    """Raise ConfigError for a schedule whose proof would take many minutes or all memory."""
    num_chunks = schedule.world_size * sum(table.num_chunks for table in schedule.tables)
    if num_chunks > _MAX_CHUNKS:
        expected = f"ranks with at most {_MAX_CHUNKS} chunks in all, each of which a proof follows"
        got = f"{schedule.world_size} ranks with {num_chunks}"
        raise bad_option("--num-ranks", expected, got, "prove the algorithm on fewer ranks")


def schedule_named(problem: Problem, algorithm: str, or_else: str = "") -> Schedule:
    """Return the schedule of an algorithm; errors list the choices."""
    names = algorithms_for(problem.collective, problem.world_size)
    if algorithm not in names:
        expected, to_fix = f"{or_else}one of {', '.join(names)}", hint(algorithm, names)
        raise ConfigError(
            ConfigProblem("command line", None, "algorithm", expected, algorithm, to_fix)
        )
    return build(problem, algorithm)


def _size(size: str) -> int:
    try:
        return units.parse_size(size)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def problem_named(collective: str, num_ranks: int, size_bytes: int, root: int = 0) -> Problem:
    """Return the problem of a collective's name; errors list the choices."""
    known = (*COLLECTIVES, *GATHERED)
    if collective not in known:
        expected, to_fix = f"one of {', '.join(known)}", hint(collective, known)
        problem = ConfigProblem("command line", None, "--collective", expected, collective, to_fix)
        raise ConfigError(problem)
    if root and collective not in ROOTED:
        expected = f"no root of {collective}"
        raise ConfigError(ConfigProblem("command line", None, "--root", expected, str(root)))
    blocks = num_ranks if collective in _LARGE else 1
    try:
        return Problem(collective, num_ranks, size_bytes // 4 // blocks, root=root)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _text(algorithm: str, problem: Problem, proof: Proof) -> str:
    blocks = problem.world_size if problem.collective in _LARGE else 1
    size = units.format_size(problem.count * blocks * problem.itemsize)
    busiest = f"{units.format_size(proof.busiest_bytes)} in or out of the busiest rank"
    if proof.bound_bytes is not None:
        times = f" ({proof.busiest_bytes / proof.bound_bytes:.2f} x)" if proof.bound_bytes else ""
        bound = units.format_size(math.ceil(proof.bound_bytes))
        busiest += f", lower bound {bound}{times}"
    rounds = "1 round" if proof.num_rounds == 1 else f"{proof.num_rounds} rounds"
    return (
        f"proved: {algorithm} computes {problem.collective} of {size} "
        f"on {problem.world_size} ranks\n"
        f"  {rounds}, {proof.num_steps} messages\n"
        f"  {busiest}"
    )
