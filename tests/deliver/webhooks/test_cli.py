"""`forge webhooks`, as it is typed."""

import asyncio
import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from forge.cli import main
from forge.deliver.webhooks.signature import key_of
from forge.postgres.connection import Connection
from tests.deliver.consumers.working import table
from tests.deliver.webhooks.endpoint import SECRET, Receiver, receiving

pytestmark = pytest.mark.command


class Done(NamedTuple):
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver in a thread: the command has an event loop of its own."""
    ready, found = threading.Event(), list[Receiver]()
    loop, over = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with receiving() as receiver:
            found.append(receiver)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(20)
    yield found[0]
    loop.call_soon_threadsafe(over.set)
    thread.join()
    loop.close()


@pytest.fixture
def forge(database: str, connection: Connection) -> Run:
    table(connection)

    def run(*words: str, fails: int = 0) -> Done:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main(["--database-url", database, "webhooks", *words])
        assert ended.value.code == fails, out.getvalue() + err.getvalue()
        return Done(out.getvalue(), err.getvalue())

    return run


def test_add_list_test_rotate_disable_remove(forge: Run, receiver: Receiver, tmp_path: Path) -> None:
    assert "no webhook" in forge("list").stdout
    words = ("--allow", "127.0.0.1", "--table", "item", "--header", "x-team: blue", "--secret", SECRET)
    body = tmp_path / "body.json"
    body.write_text('{"text": "{row.v}"}')
    shown = forge("add", "crm", receiver.url, *words, "--payload", f"@{body}").stdout
    assert "crm gets what is committed from now on" in shown
    assert SECRET in shown
    where = receiver.url.removesuffix("hook") + "…"
    (listed,) = json.loads(forge("list", "--json").stdout)
    assert (listed["name"], listed["url"], listed["headers"], listed["payload"]) == (
        "crm", where, ["x-team"], {"text": "{row.v}"},
    )  # fmt: skip
    assert listed["consumer"]["state"] == "running"
    text = forge("list").stdout
    assert where in text
    assert SECRET not in text + json.dumps(listed)
    assert "204 after" in forge("test", "crm").stdout
    receiver.answer = lambda request: "500 out of order"
    assert "out of order" in forge("test", "crm", fails=1).stdout
    made = json.loads(forge("rotate", "crm", "--keep", "1h", "--json").stdout)["secret"]
    assert len(key_of(made)) == 32
    forge("disable", "crm")
    assert "disabled" in forge("list").stdout
    forge("enable", "crm")
    forge("remove", "crm", "--yes")
    assert json.loads(forge("list", "--json").stdout) == []


def test_errors_say_what_to_do(forge: Run) -> None:
    for words, what, fix in (
        (("add", "crm", "https://10.0.0.1/"), "inside a network", "allow it"),
        (("add", "crm", "http://example.com/"), "plain http", "use https"),
        (("add", "crm", "https://example.com/", "--payload", "{"), "no JSON", "--payload"),
        (("add", "crm", "https://example.com/", "--payload", "@nowhere"), "cannot be read", "file"),
        (("add", "crm", "https://example.com/", "--header", "x"), "no header", "--header"),
        (("add", "crm", "https://example.com/", "--where", "a >"), "crm", ""),
        (("test", "crm"), "no webhook 'crm'", "forge webhooks list"),
        (("disable", "crm"), "no webhook 'crm'", "forge webhooks list"),
    ):
        said = forge(*words, fails=1).stderr.splitlines()
        assert len(said) == 2, said
        assert what in said[0]
        assert fix in said[1]
    assert "--keep cannot be" in forge("rotate", "crm", "--keep", "soon", fails=2).stderr
