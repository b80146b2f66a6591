"""`forge enable` and `forge disable` on a SQLite file."""

import json
from pathlib import Path

import pytest

from forge.cli import main
from tests.capture.sqlite.files import now, since, url_of, writer

pytestmark = [pytest.mark.command, pytest.mark.contract("W6")]


def forge(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, error = capsys.readouterr()
    return int(ended.value.code or 0), out, error


async def test_tables_are_enabled_and_disabled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shop.db"
    connection = writer(path)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note, card)")
    connection.execute("CREATE TABLE people (id INTEGER PRIMARY KEY)")
    at = ("--database-url", url_of(path))
    code, out, _ = forge(capsys, "enable", "orders", "--exclude", "card", *at, "--json")
    assert (code, json.loads(out)) == (0, {"enabled": ["orders"], "skipped": {}})
    start = await now(path)
    connection.execute("INSERT INTO orders VALUES (1, 'x', '4111')")
    (change,) = await since(path, start)
    assert repr(change.after) == "{'id': 1, 'note': 'x', 'card': UNAVAILABLE}"
    code, out, _ = forge(capsys, "enable", "--all", *at)
    assert (code, out.strip()) == (0, "✓ 1 table tracked: people")
    code, out, _ = forge(capsys, "enable", "--all", *at)
    assert out.strip() == "✓ every table is tracked already"
    code, out, _ = forge(capsys, "disable", "orders", *at)
    assert (code, out.strip()) == (0, "✓ orders is no longer tracked")
    code, out, _ = forge(capsys, "disable", "orders", *at)
    assert out.strip() == "! orders was not tracked"


def test_what_is_wrong_is_said_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shop.db"
    code, _, error = forge(capsys, "enable", "orders", "-d", url_of(path))
    assert (code, error) == (
        1,
        f"error: there is no file {path}\nfix: check the URL: sqlite:///relative, sqlite:////absolute\n",
    )
    writer(path).execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    code, _, error = forge(capsys, "enable", "order", "-d", url_of(path))
    assert (code, error) == (1, "error: there is no table order\nfix: did you mean orders?\n")
    code, _, error = forge(capsys, "enable", "orders", "--replica", "-d", url_of(path))
    assert code == 2
    assert "--replica and --on-failure are for PostgreSQL" in error
