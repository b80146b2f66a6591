"""Session of a command: the configuration, the database, and the consoles.

Results go to standard output, everything else to standard error. Colour is used only on a terminal, and not with
--no-color or NO_COLOR. Text from a database is never interpreted as markup.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer
from rich.console import Console, RenderableType
from rich.text import Text

from forge import config as configuration
from forge.changelog.install import require_installed
from forge.config import Config
from forge.database import Database, database
from forge.postgres.connection import Connection, await_server, connect
from forge.terminal import shown

if TYPE_CHECKING:
    from rich.progress import Progress

PIPED_WIDTH = 250


class CommandSession:
    """One run of the command."""

    def __init__(
        self,
        *,
        flags: Mapping[str, Any] | None = None,
        config_file: Path | None = None,
        json: bool = False,
        colour: bool = True,
        debug: bool = False,
    ) -> None:
        self.json = json
        self.debug = debug
        self._flags = dict(flags or {})
        self._config_file = config_file
        self._url: str | None = None
        self._colour = colour and not os.environ.get("NO_COLOR")
        self.out = self._console(stderr=False)
        self.err = self._console(stderr=True)

    def _console(self, *, stderr: bool) -> Console:
        terminal = (sys.stderr if stderr else sys.stdout).isatty()
        return Console(
            stderr=stderr,
            no_color=not self._colour,
            color_system="auto" if self._colour and terminal else None,
            highlight=False,
            markup=False,
            emoji=False,
            width=None if terminal else PIPED_WIDTH,
        )

    @property
    def colour(self) -> bool:
        """Whether standard output takes colours."""
        return self.out.is_terminal and self._colour and self.out.color_system is not None

    @cached_property
    def config(self) -> Config:
        """The configuration in force."""
        return configuration.load(self._flags, os.environ, self._config_file, self._url)

    def given(self) -> dict[str, str]:
        """The flags that were given, and the file of settings, for a process that runs for this one."""
        flags = {name: str(value) for name, value in self._flags.items() if value is not None}
        return flags if self._config_file is None else {**flags, "config": str(self._config_file)}

    def use(self, url: str | None) -> None:
        """Take the database from a command's own argument."""
        self._url = url

    @contextmanager
    def database(self, *, create: bool = False) -> Iterator[Database]:
        """The database to work on, and the server's errors as Forge's. An embedded one is made only with `create`."""
        with database(self.config, create=create) as found:
            yield found

    @contextmanager
    def connection(self, *, installed: bool = True) -> Iterator[Connection]:
        """A connection to it; by default only where Forge is installed."""
        with self.database() as found, connect(found.url) as connection:
            if installed:
                require_installed(connection)
            yield connection

    def waiting(self, text: str) -> None:
        """Say on standard error what a command that runs for ever waits for."""
        self.err.print(Text.assemble(("waiting: ", "yellow"), shown(text)), soft_wrap=True)

    def until_up(self, url: str) -> None:
        """Return when the server takes connections; one that starts up or shuts down is waited for."""
        await_server(url, self.waiting)

    def done(self, *texts: str) -> None:
        """Say on one line that something was done, or is well."""
        line = Text("   ").join(Text.assemble(("✓ ", "green"), shown(text)) for text in texts)
        self.out.print(line, soft_wrap=True)

    def note(self, text: str) -> None:
        """Say something that the reader may want to act on."""
        self.out.print(Text.assemble(("! ", "yellow"), shown(text)), soft_wrap=True)

    def hint(self, command: str) -> None:
        """Name the command that comes next, to people only."""
        if self.out.is_terminal:
            self.out.print(Text(f"next: {command}", "dim"), soft_wrap=True)

    def show(self, what: RenderableType) -> None:
        """Print a table or text; into a pipe or file without the blanks that fill a table's lines."""
        if self.out.is_terminal:
            self.out.print(what, soft_wrap=isinstance(what, Text))
            return
        with self.out.capture() as lines:
            self.out.print(what, soft_wrap=isinstance(what, Text))
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in lines.get().removesuffix("\n").split("\n")))

    def emit(self, value: Any) -> None:
        """Print a value as one line of JSON."""
        sys.stdout.write(msgspec.json.encode(value).decode() + "\n")

    @contextmanager
    def progress(self, total: int | None = None) -> Iterator["Bar"]:
        """A progress bar on standard error while something long runs; none where that is no terminal."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=self.err, transient=True, disable=not self.err.is_terminal) as bar:
            yield Bar(bar, total)


class Bar:
    """One bar of a `CommandSession.progress`."""

    def __init__(self, progress: "Progress", total: int | None) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total)

    def step(self, text: str, advance: int = 1) -> None:
        """Say what is being done, and that so much before it is."""
        self._progress.update(self._task, description=shown(text), advance=advance)


def session(context: typer.Context) -> CommandSession:
    """The session of a running command."""
    found = context.find_object(CommandSession)
    assert found is not None
    return found


def forget_output() -> None:
    """Nobody reads standard output any more: what is left of it goes nowhere, without a word."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
