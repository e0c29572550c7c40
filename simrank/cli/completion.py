"""Shell completion: options of each command and their words, without its import.

`surface.json` holds the command line as users may rely on it: each spelling of each command, and
the words that some of them choose from. A test compares it with the commands;
`python tests/surface.py` writes it again.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
import typer.main

if TYPE_CHECKING:
    from collections.abc import Callable

SURFACE = Path(__file__).with_name("surface.json")
FLAG, ANY = "flag", "any"


class Spelling(NamedTuple):
    """One spelling of an option, or the name of an argument.

    Attributes:
        takes: "flag" for no value, "any", or the list of words that it chooses from.
        help: One line, as the command's own help has it.
        is_hidden: It is accepted, but neither shown nor completed.
    """

    takes: str
    help: str
    is_hidden: bool = False


def described(name: str) -> Any:  # noqa: ANN401 - a command of typer's
    """Return a command without an action, for completion.

    Args:
        name: A command, or a group of commands, as typed.
    """
    surface = json.loads(SURFACE.read_text("utf-8"))
    group = typer.Typer(add_completion=False)
    for words, spellings in surface["commands"].items():
        first, *rest = words.split()
        if first != name:
            continue
        settings = {"allow_interspersed_args": "args" not in spellings}
        declare = group.command(name=(rest or [first])[0], context_settings=settings)
        declare(_nothing(spellings, surface["words"]))
        if rest:
            group.callback()(lambda: None)  # A group, also with one command.
    return typer.main.get_command(group)


def _nothing(spellings: dict[str, list[Any]], words: dict[str, list[str]]) -> Any:  # noqa: ANN401
    """Return a function with these parameters, from which typer reads them."""

    def nothing(**_: Any) -> None:  # noqa: ANN401
        pass

    parameters = []
    for number, (spelling, of) in enumerate(spellings.items()):
        takes, text, is_hidden = Spelling(*of)
        completes = _starting(words[takes]) if takes in words else None
        kind: Any = bool if takes == FLAG else str
        default: Any = None if takes != FLAG else False
        made: Any
        if spelling.startswith("-"):
            made = typer.Option(spelling, help=text, hidden=is_hidden, autocompletion=completes)
        elif spelling == "args":
            made, kind = typer.Argument(help=text), list[str]
        else:
            made = typer.Argument(help=text, autocompletion=completes)
        annotation = Annotated[kind | None, made]
        name = f"parameter_{number}"
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
        )
    nothing.__annotations__ = {each.name: each.annotation for each in parameters}
    nothing.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return nothing


def _starting(words: list[str]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete
