"""`forge codegen`: types of an application's queries and mutations, for the programs that call them."""

import http.client
import os
import sys
import urllib.request
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from forge.cli.arguments import add_group
from forge.cli.serve import check as application
from forge.cli.session import CommandSession, session
from forge.errors import ConfigError

_SECONDS: Final = 10.0
_MOST: Final = 16 * 1024 * 1024


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        name="codegen",
        help="Types of an application's queries and mutations, for the programs that call them.",
        epilog="Examples:\n\nforge codegen typescript shop:app --out src/shop.ts",
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    examples = (
        "forge codegen typescript shop:app --out src/shop.ts\n\n"
        "forge codegen typescript --url http://127.0.0.1:8710 --out src/shop.ts\n\n"
        "forge codegen typescript shop:app --out src/shop.ts --check"
    )
    add_group(app, group, [("typescript", typescript, examples)])


def typescript(
    context: typer.Context,
    target: Annotated[
        str | None, typer.Argument(metavar="MODULE:APP", help="Where the Forge() object is, e.g. shop:app")
    ] = None,
    url: Annotated[str | None, typer.Option(metavar="URL", help="A server of the application, instead.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it there, if it differs.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; an error if the file differs.")] = False,
    name: Annotated[str, typer.Option(help="The name of the application's type.")] = "App",
    bigint: Annotated[
        bool, typer.Option("--bigint", help="Whole numbers of results are number | bigint: some are beyond 2⁵³.")
    ] = False,
) -> None:
    """The types that createClient<App>() of @forge/client takes, as a TypeScript module."""
    run = session(context)
    if (target is None) == (url is None):
        raise ConfigError("which application?", fix="forge codegen typescript shop:app, or --url http://…")
    if check and out is None:
        raise ConfigError("--check needs a file", fix="add --out FILE")
    document = _of_module(target, run) if target is not None else _of_server(url or "")
    from forge.serve.codegen import typescript as generated

    named = [] if name == "App" else [f"--name {name}"]
    large = ["--bigint"] if bigint else []
    command = " ".join(["forge codegen typescript", target or f"--url {url}", *named, *large])
    text = generated(document, source=command, name=name, bigint=bigint)
    if out is None:
        sys.stdout.write(text)
        return
    same = out.is_file() and out.read_text("utf-8") == text
    if check and not same:
        raise ConfigError(f"{out} is not what the application has", fix=f"{command} --out {out}")
    if not same:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, "utf-8")
    run.done(f"{out} is up to date" if same else f"wrote {out}")


def _of_module(target: str, run: CommandSession) -> dict[str, Any]:
    sys.path.insert(0, os.getcwd())
    registry = application(target, run).registry
    from forge.serve.openapi import document

    return document(registry, title="", version="", security=False)


def _of_server(url: str) -> dict[str, Any]:
    """What a server says of itself; no token is needed for that."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url!r} is no URL of a server", fix="write it as http://127.0.0.1:8710")
    address = f"{url.rstrip('/')}/forge/openapi.json"
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as answer:
            return msgspec.json.decode(answer.read(_MOST), type=dict[str, Any])
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ConfigError(f"{address} cannot be read: {reason}", fix="see that it is served there") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{address} is no JSON", fix="give the URL of a Forge server") from error
