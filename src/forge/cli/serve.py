"""`forge serve`: an application's queries and mutations over HTTP, live."""

import errno
import importlib
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from forge.cli.session import CommandSession, session
from forge.config import Config, in_force
from forge.errors import ConfigError

if TYPE_CHECKING:
    from forge.app import Forge

DEFAULTS: Final = Config().serve


def register(app: typer.Typer) -> None:
    app.command(
        "serve",
        epilog="Examples:\n\nforge serve shop:app\n\nforge serve shop:app --port 9000 --workers 4\n\n"
        "curl -gN 'http://127.0.0.1:8710/forge/live/open_orders?args={\"customer_id\":7}'",
    )(serve)


def serve(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the Forge() object is, e.g. shop:app")],
    host: Annotated[str | None, typer.Option(help="The address to listen on.", show_default=DEFAULTS.host)] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port to listen on.", show_default=str(DEFAULTS.port))
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes; each is a node of its own.", show_default=str(DEFAULTS.workers)),
    ] = None,
) -> None:
    """Serve an application: live queries over SSE and WebSocket, mutations, the raw feed, the console, metrics."""
    run = session(context)
    configured = run.config.serve
    host = configured.host if host is None else host
    port = configured.port if port is None else port
    workers = configured.workers if workers is None else workers
    sys.path.insert(0, os.getcwd())
    app = check(target, run, host)
    app.check(run.waiting)
    listening = listen(host, port, target)
    import uvicorn
    from uvicorn.supervisors import Multiprocess

    at = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    opened = app.options.console is not None or app.options.auth is None
    console = [f"console {at}/console"] if opened else []

    class AnnouncingServer(uvicorn.Server):
        """Says that it serves once it does."""

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                run.done(f"serving {target} at {at}", *console)

    options = uvicorn.Config(
        target,
        host=host,
        port=port,
        workers=workers,
        loop="uvloop",
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=max(DEFAULTS.request_bytes, in_force(app.options, run.config).limits.request_bytes),
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=10,
        server_header=False,
    )
    if workers > 1:
        run.done(f"serving {target} at {at} by {workers} processes", *console)
        Multiprocess(options, [listening]).run()
        return
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # a closed terminal, unless started with nohup
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    server = AnnouncingServer(options)
    server.run([listening])
    if not server.started:
        raise typer.Exit(1)


def listen(host: str, port: int, target: str) -> socket.socket:
    """A socket on the port; raise ConfigError when it cannot be had."""
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port} is taken", fix=f"forge serve {target} --port {port + 1}") from error
        problem = (error.strerror or str(error)).lower()
        raise ConfigError(f"cannot listen on {host}:{port}: {problem}", fix="use another --host or --port") from error
    listening.set_inheritable(True)
    return listening


def pass_flags(run: CommandSession, host: str | None = None) -> None:
    """Let the applications of this process and of its children use the flags of this command."""
    from forge.app import SERVE_FLAGS

    os.environ[SERVE_FLAGS] = msgspec.json.encode({**run.given(), "host": host}).decode()


def check(target: str, run: CommandSession, host: str | None = None) -> "Forge":
    """The application that is named; raise ConfigError when there is none. Its processes get the flags of this one."""
    try:
        from forge.app import Forge
    except ModuleNotFoundError as error:
        missing = f"{error.name} is not installed"
        raise ConfigError(missing, fix="pip install 'forge-changes[serve]'") from error
    pass_flags(run, host)
    module, _, name = target.partition(":")
    fix = "name a module and the Forge() in it, e.g. shop:app"
    if not module or not name:
        raise ConfigError(f"{target!r} is not MODULE:APP", fix=fix)
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if module == error.name or module.startswith(f"{error.name}."):
            raise ConfigError(f"there is no module {error.name}", fix=fix) from error
        raise ConfigError(
            f"{module} imports {error.name}, which is not installed", fix=f"install {error.name}, or correct {module}"
        ) from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(
            f"{module} cannot be imported: {reason}", fix=f"python -c 'import {module}' says where"
        ) from error
    if not isinstance(found, Forge):
        raise ConfigError(f"{name} in {module} is not a forge.Forge", fix=fix)
    return found
