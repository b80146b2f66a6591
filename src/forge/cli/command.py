"""Command line: global flags, the commands, and error messages.

Only the module of the called command is imported; for the help, all are, for the version none.
"""

import importlib
import logging
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final, NoReturn

import psycopg
import typer

from forge.cli.arguments import Command, command_name, hoist
from forge.cli.session import CommandSession, forget_output
from forge.errors import ForgeError, one_line
from forge.postgres.connection import translate
from forge.terminal import shown

INTERRUPTED = 130

COMMANDS: Final = (
    "init", "enable", "disable", "status", "tail", "serve", "codegen", "consumers", "webhooks", "outbox", "pipeline",
    "slot", "crosscheck", "history", "audit", "as-of", "revert", "redact", "verify-log", "versions", "trim", "maintain",
    "doctor", "config", "demo",
)  # fmt: skip
"""Commands in the order of the help. Each is a module of this package."""


def application(names: Sequence[str] = COMMANDS) -> typer.Typer:
    """The command line with these commands."""
    app = typer.Typer(
        name="forge",
        help="Every change of a PostgreSQL database, captured once: durable, gap-free, with who and why.",
        epilog="These options may stand before or after a command.\n\n"
        "With no database URL, forge runs a PostgreSQL of its own in .forge/.\n\n"
        "Example: forge init; forge enable orders; forge tail",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(everywhere)
    for name in names:
        importlib.import_module(f"forge.cli.{name.replace('-', '_')}").register(app)
    for registered in app.registered_commands:
        registered.cls = Command
    return app


def show_version(wanted: bool) -> None:
    """Print the version and end."""
    if wanted:
        sys.stdout.write(f"forge {version('forge-changes')}\n")
        raise typer.Exit


def everywhere(
    context: typer.Context,
    database_url: Annotated[
        str | None, typer.Option("--database-url", "-d", help="The database; else FORGE_DATABASE_URL, else forge.toml.")
    ] = None,
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Another file than forge.toml.")
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", metavar="DIR", help="Another directory than .forge.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="Print no colours, as with NO_COLOR set.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """Flags that every command takes, before or after its name; without a command, the help."""
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")
        raise typer.Exit
    context.obj = CommandSession(
        flags={"database_url": database_url, "data": data},
        config_file=config_file,
        json=json,
        colour=not no_color,
        debug=debug,
    )


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit: 0 well, 1 an error, 2 a wrong command line, 130 interrupted."""
    words = hoist(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(format="warning: %(message)s", level=logging.WARNING)
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns of rollbacks that an interrupt cut short
    signal.signal(signal.SIGTERM, _terminated)
    try:
        name = command_name(words)
        if name in COMMANDS:
            app = application([name])
        else:
            app = application(COMMANDS if name or "--version" not in words else ())
        code = app(words, prog_name="forge", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        forget_output()
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except typer.Abort:
        code = INTERRUPTED
    except typer.TyperException as error:
        where = getattr(getattr(error, "ctx", None), "command_path", "forge")
        code = _complain(error.format_message(), f"see {where} --help", error.exit_code)
    except (ForgeError, psycopg.Error, OSError) as error:
        if "--debug" in words:
            traceback.print_exc()
        code = explain(error)
    sys.exit(code if isinstance(code, int) else 0)


def explain(error: ForgeError | psycopg.Error | OSError) -> int:
    """Say what is wrong and what to do; the exit code."""
    if isinstance(error, psycopg.Error):
        error = translate(error) or error
    if isinstance(error, ForgeError):
        return _complain(str(error), error.fix, 1)
    line = one_line(error)
    return _complain(line, "see forge doctor, or the traceback with --debug", 1)


def _complain(what: str, fix: str, code: int) -> int:
    sys.stderr.write(f"error: {shown(' '.join(what.split()))}\nfix: {shown(fix)}\n")
    return code


def _terminated(_signal: int, _frame: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)
