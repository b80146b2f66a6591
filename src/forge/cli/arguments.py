"""Global flags: they may stand anywhere on the command line, and every command's help lists them."""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperOption

PANEL: Final = "Options of every command"

SWITCHES: Final = ("--json", "--no-color", "--debug")
VALUED: Final = ("--database-url", "-d", "--config", "--data")
_JOINED: Final = ("--database-url=", "--config=", "--data=")


def hoist(arguments: Sequence[str]) -> list[str]:
    """The arguments with the global flags before the command's name; nothing after a bare `--` is moved.

    >>> hoist(["tail", "--once", "--json", "-d", "postgresql://db", "--table", "orders"])
    ['--json', '-d', 'postgresql://db', 'tail', '--once', '--table', 'orders']
    """
    front: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word in SWITCHES or word.startswith(_JOINED) or (word.startswith("-d") and word != "-d"):
            front.append(word)
        elif word in VALUED:
            front += [word, *(value for value in [next(words, None)] if value is not None)]
        else:
            rest.append(word)
    return front + rest


def command_name(words: Sequence[str]) -> str | None:
    """The command's name: the first of the hoisted words that is no global flag and no value of one.

    >>> command_name(["--json", "-d", "postgresql://db", "tail", "--once"])
    'tail'
    """
    rest = iter(words)
    for word in rest:
        if word in VALUED:
            next(rest, None)
        elif not word.startswith("-"):
            return word
        elif word not in SWITCHES and not word.startswith((*_JOINED, "-d")):
            return None
    return None


class Command(TyperCommand):
    """A command whose help has a panel with the global flags. `hoist` has moved them away before it is parsed."""

    def get_params(self, ctx: Any) -> list[Any]:
        own = super().get_params(ctx)
        return [
            *own,
            *(_listed(param) for param in ctx.find_root().command.params if set(param.opts) & {*SWITCHES, *VALUED}),
        ]


def _listed(param: TyperOption) -> TyperOption:
    shown = copy.copy(param)
    shown.expose_value = False
    shown.rich_help_panel = PANEL
    return shown


def add_group(app: typer.Typer, group: typer.Typer, commands: Iterable[tuple[str, Callable[..., None], str]]) -> None:
    """Add a group of commands, each with its name and examples."""
    for name, command, examples in commands:
        group.command(name, cls=Command, epilog=f"Examples:\n\n{examples}")(command)
    app.add_typer(group)
