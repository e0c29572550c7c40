"""`simrank diagnose`: why a real job hangs, from its flight records."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from simrank.cli.common import BAD_CONFIG, EXIT_STATUS, FAILED, app, check_writable, progress_bar
from simrank.diagnose import diagnose as diagnosed
from simrank.diagnose import read_records
from simrank.errors import FlightRecordError


@app.command(epilog=EXIT_STATUS)
def diagnose(
    paths: Annotated[
        list[str], typer.Argument(help="Flight records of a job, or folders that hold them.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    html: Annotated[
        str | None, typer.Option(help="Write an HTML page: a lane of calls for each rank.")
    ] = None,
    replay: Annotated[
        bool, typer.Option(help="Issue the unfinished calls again in the simulator, as proof.")
    ] = True,
) -> None:
    """Explain why a job hangs, from the flight records of its ranks.

    They are what torch writes when its watchdog fires (TORCH_NCCL_DUMP_ON_TIMEOUT=1,
    TORCH_NCCL_TRACE_BUFFER_SIZE=2000): pickles or JSON, one for each rank, whose number is in its
    file's name. Stacks from py-spy beside them are used. The status is 1 if a hang is found.
    """
    check_writable(html)
    with progress_bar() as bar:
        task = bar.add_task("records", total=None)
        try:
            records = read_records(
                paths, lambda num, total: bar.update(task, completed=num, total=total)
            )
        except (FlightRecordError, OSError) as error:  # Another status than a hang's.
            typer.echo(f"simrank: {error}", err=True)
            raise typer.Exit(BAD_CONFIG) from error
    found = diagnosed(records, replay=replay, page=html)
    typer.echo(json.dumps(found.as_dict(), indent=2) if as_json else str(found))
    if found.cause is not None:
        raise typer.Exit(FAILED)
