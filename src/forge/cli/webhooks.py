"""`forge webhooks`: manage endpoints in the database to which changes are sent."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from forge.cli.arguments import add_group
from forge.cli.deliveries import columns, until_told
from forge.cli.serve import pass_flags
from forge.cli.session import CommandSession, session
from forge.config import seconds
from forge.deliver.consumers.control import Control, ShardStatus
from forge.deliver.consumers.definition import WEBHOOK
from forge.deliver.webhooks.endpoints import Endpoint, Endpoints
from forge.errors import ConfigError
from forge.terminal import ABSENT, shown

T = TypeVar("T")
Name = Annotated[str, typer.Argument(help="The webhook's name.", show_default=False)]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        name="webhooks",
        help="Endpoints that changes are sent to: signed, in order, at least once.",
        epilog="Examples:\n\nforge webhooks add crm https://crm.example.com/hook --table orders\n\n"
        "forge webhooks test crm\n\nforge webhooks list\n\nforge webhooks disable crm",
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    commands = (
        (
            "add",
            add,
            "forge webhooks add crm https://crm.example.com/hook --table orders --where \"status = 'paid'\"\n\n"
            "forge webhooks add chat https://chat.example.com/hook --table orders"
            """ --payload '{"text": "Order {key.id} is {row.status}"}'"""
            "\n\nforge webhooks add dev http://127.0.0.1:9000/hook --allow 127.0.0.1",
        ),
        ("list", listed, "forge webhooks list\n\nforge webhooks list --json"),
        ("test", test, "forge webhooks test crm"),
        ("run", run, "forge webhooks run"),
        ("disable", disable, "forge webhooks disable crm"),
        ("enable", enable, "forge webhooks enable crm"),
        ("rotate", rotate, "forge webhooks rotate crm\n\nforge webhooks rotate crm --keep 1h"),
        ("remove", remove, "forge webhooks remove crm --yes"),
    )
    add_group(app, group, commands)


def add(
    context: typer.Context,
    name: Name,
    url: Annotated[str, typer.Argument(help="Where to: https://…", show_default=False)],
    table: Annotated[list[str] | None, typer.Option(help="Only this table; may be given again.")] = None,
    op: Annotated[list[str] | None, typer.Option(help="Only this operation; may be given again.")] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(help="Send this column; may be given again. Updates that change none of them are not sent."),
    ] = None,
    where: Annotated[str | None, typer.Option(help="Only rows for which this holds, before or after.")] = None,
    envelope: Annotated[str, typer.Option(help="The form of a change: forge or debezium.")] = "forge",
    payload: Annotated[
        str | None,
        typer.Option(help="A body of your own: JSON with {places} such as {row.status}; @FILE reads it from a file."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=1000, help="Changes in one request.")] = 1,
    in_flight: Annotated[int, typer.Option(min=1, max=256, help="Requests at once, of different rows.")] = 16,
    timeout: Annotated[float, typer.Option(help="Seconds for one request, up to 30.")] = 10.0,
    tries: Annotated[
        int | None, typer.Option(min=1, help="Park a change after so many; for ever if not given.")
    ] = None,
    header: Annotated[list[str] | None, typer.Option(help="A header to send, 'name: value'.")] = None,
    allow: Annotated[list[str] | None, typer.Option(help="A network or host inside that it may go to.")] = None,
    secret: Annotated[
        str | None, typer.Option(help="whsec_…; made if not given.", envvar="FORGE_WEBHOOK_SECRET")
    ] = None,
) -> None:
    """Send changes to an endpoint from now on. The secret is shown once: the endpoint needs it."""
    run = session(context)
    added: Endpoint = _ask(
        run,
        lambda endpoints: endpoints.add(
            name, url, secret=secret, tables=table or (), ops=op or (), columns=column or (), where=where,
            envelope=envelope, payload=_payload(payload), batch=batch, in_flight=in_flight, timeout=timeout,  # type: ignore[arg-type]
            tries=tries, headers=_headers(header or []), allow=allow or (),
        ),
    )  # fmt: skip
    if run.json:
        run.emit({"name": name, "url": added.where_to, "secret": added.secrets[0]})
        return
    run.done(f"{name} gets what is committed from now on")
    run.show(f"secret  {added.secrets[0]}")
    run.hint(f"forge webhooks test {name}")


def listed(context: typer.Context) -> None:
    """Every webhook: where it goes, how far behind it is, and what went wrong."""
    run = session(context)
    with run.database() as database:
        found = asyncio.run(Endpoints(database.url).all())
        states = {each.name: each for each in asyncio.run(Control(database.url).statuses())}
    if run.json:
        run.emit([_told(each, states.get(WEBHOOK + each.name)) for each in found])
        return
    if not found:
        run.done("no webhook is kept in this database")
        run.hint("forge webhooks add NAME URL --table TABLE")
        return
    table = columns("webhook", "url", "tables", "state", "behind", "handled", "dead", "last error")
    for each in found:
        status = states.get(WEBHOOK + each.name)
        cells = [ABSENT] * 5 if status is None else _cells(status)
        table.add_row(shown(each.name), shown(each.where_to), shown(", ".join(each.tables) or "*"), *cells)
    run.show(table)


def test(context: typer.Context, name: Name) -> None:
    """Send one signed request of the topic forge.test, and show what the endpoint answers."""
    run = session(context)
    answer = _ask(run, lambda endpoints: endpoints.test(name))
    good = 200 <= answer.status < 300
    if run.json:
        run.emit({"status": answer.status, "seconds": answer.seconds, "answer": answer.text})
    elif good:
        run.done(f"{answer.status} after {answer.seconds * 1000:.0f} ms")
    else:
        run.note(f"{answer.status} after {answer.seconds * 1000:.0f} ms: {answer.text or 'no text'}")
    raise typer.Exit(0 if good else 1)


def run(context: typer.Context) -> None:
    """Send to the webhooks, without an application. `forge serve` and `forge consumers run` send to them too."""
    from forge.app import Forge

    run = session(context)
    with run.database() as database:
        pass_flags(run)
        app = Forge(database.url)
        app.check(run.waiting)
        run.done("sending to the webhooks of this database")
        asyncio.run(until_told(app.consume()))


def disable(context: typer.Context, name: Name) -> None:
    """Send nothing more; what is committed meanwhile waits in the log, for as long as that keeps it."""
    run = session(context)
    _ask(run, lambda endpoints: endpoints.disable(name))
    _say(run, {"name": name, "state": "paused"}, f"{name} is disabled: forge webhooks enable {name} goes on")


def enable(context: typer.Context, name: Name) -> None:
    """Go on where it was disabled."""
    run = session(context)
    _ask(run, lambda endpoints: endpoints.enable(name))
    _say(run, {"name": name, "state": "running"}, f"{name} goes on")


def rotate(
    context: typer.Context,
    name: Name,
    keep: Annotated[str, typer.Option(help="How long those before it go on signing: 24h, 30m, 0s.")] = "24h",
    secret: Annotated[str | None, typer.Option(help="whsec_…; made if not given.")] = None,
) -> None:
    """A new secret, shown once. Requests have both signatures until the time is over."""
    run = session(context)
    length = seconds(keep)
    if length is None:
        raise typer.BadParameter(f"--keep cannot be {keep!r}: write it as 0s, 30m or 24h")
    made = _ask(run, lambda endpoints: endpoints.rotate(name, secret=secret, keep=length))
    if run.json:
        run.emit({"name": name, "secret": made})
        return
    run.done(f"{name} has a new secret; the one before it signs for {keep} more")
    run.show(f"secret  {made}")


def remove(
    context: typer.Context,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove a webhook, with its cursor and dead letters."""
    run = session(context)
    if not yes:
        typer.confirm(f"Remove {name}, its cursor and dead letters?", abort=True)
    _ask(run, lambda endpoints: endpoints.remove(name))
    _say(run, {"name": name, "removed": True}, f"{name} is removed")


def _ask(run: CommandSession, what: Callable[[Endpoints], Awaitable[T]]) -> T:
    async def asked(url: str) -> T:
        return await what(Endpoints(url))

    with run.database() as database:
        return asyncio.run(asked(database.url))


def _say(run: CommandSession, value: dict[str, Any], text: str) -> None:
    if run.json:
        run.emit(value)
    else:
        run.done(text)


def _payload(text: str | None) -> Any:
    """A template, from the command line or a file."""
    if text is None:
        return None
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text()
        except OSError as error:
            raise ConfigError(f"{text[1:]} cannot be read: {error.strerror}", fix="give a file of JSON") from None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"the payload is no JSON: {error}", fix="""--payload '{"text": "Order {key.id} is {row.status}"}'"""
        ) from None


def _headers(given: list[str]) -> dict[str, str]:
    found = {}
    for each in given:
        name, colon, value = each.partition(":")
        if not colon or not name.strip():
            raise ConfigError(f"{each!r} is no header", fix="--header 'authorization: Bearer …'")
        found[name.strip()] = value.strip()
    return found


def _told(each: Endpoint, status: ShardStatus | None) -> dict[str, Any]:
    """All of it but the secrets, and what may be as secret: headers, and the URL beyond its host."""
    found = {**msgspec.to_builtins(each), "url": each.where_to}
    del found["secrets"]
    found["headers"] = sorted(each.headers)
    return {**found, "consumer": None if status is None else msgspec.to_builtins(status)}


def _cells(status: ShardStatus) -> list[str]:
    state = {"paused": "disabled"}.get(status.state, status.state)
    if status.state == "running" and not status.working:
        state = "waiting"
    return [
        state,
        f"{status.lag_events or 0:,}",
        f"{status.delivered:,}",
        f"{status.dead_letters:,}",
        shown(status.last_error or ABSENT),
    ]
