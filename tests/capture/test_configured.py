"""The configured database may be any source's: commands that read sources take it, others say that they do not."""

import gc
import json
from pathlib import Path

import pytest

from forge.cli import main
from tests.capture.mongo.reading import UNCLOSED
from tests.capture.sqlite.files import url_of, writer

pytestmark = [pytest.mark.contract("W6")]


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORGE_DATABASE_URL", raising=False)


def forge(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, error = capsys.readouterr()
    return int(ended.value.code or 0), out, error


@pytest.mark.parametrize("where", ["FORGE_DATABASE_URL", "forge.toml"])
def test_a_configured_file_is_enabled_tailed_and_examined(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shop.db"
    connection = writer(path)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note)")
    if where == "forge.toml":
        (tmp_path / "forge.toml").write_text(f'database_url = "{url_of(path)}"')
    else:
        monkeypatch.setenv(where, url_of(path))
    code, out, _ = forge(capsys, "enable", "orders", "--json")
    assert (code, json.loads(out)) == (0, {"enabled": ["orders"], "skipped": {}})
    connection.execute("INSERT INTO orders VALUES (1, 'x')")
    code, out, _ = forge(capsys, "tail", "--once", "--op", "insert", "--json")
    (change,) = [json.loads(line) for line in out.splitlines()]
    assert (code, change["operation"], change["after"]) == (0, "INSERT", {"id": 1, "note": "x"})
    code, out, _ = forge(capsys, "status", "--json")
    assert (code, json.loads(out)["kind"]) == (0, "sqlite")
    code, out, _ = forge(capsys, "doctor", "--json")
    assert (code, json.loads(out)["healthy"]) == (0, True)
    code, out, _ = forge(capsys, "disable", "orders", "--json")
    assert (code, json.loads(out)) == (0, {"disabled": ["orders"]})


@pytest.mark.parametrize(
    "url",
    [
        "mysql://root@127.0.0.1:1/shop",
        pytest.param("mongodb://127.0.0.1:1/shop?serverSelectionTimeoutMS=50", marks=UNCLOSED),
        "postgresql://postgres@127.0.0.1:1/shop?feed=wal",
    ],
)
def test_other_configured_sources_are_asked_too(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is there, and it is the source that says so."""
    monkeypatch.setenv("FORGE_DATABASE_URL", url)
    for command in (["status"], ["tail", "--from", "now"]):
        code, _, error = forge(capsys, *command)
        assert code == 1
        assert "cannot be reached" in error or "cannot reach" in error, error
        assert "\nfix: " in error
    gc.collect()


@pytest.mark.parametrize(
    ("words", "url", "kind"),
    [
        (["enable", "orders"], "mysql://root@db/shop", "MySQL"),
        (["disable", "orders"], "mongodb://db/shop", "MongoDB"),
        (["init"], "sqlite:///shop.db", "SQLite"),
        (["maintain"], "sqlite:///shop.db", "SQLite"),
        (["slot", "list"], "mariadb://root@db/shop", "MariaDB"),
        (["trim"], "mongodb+srv://db/shop", "MongoDB"),
    ],
)
def test_commands_for_postgresql_say_so_in_a_line(
    words: list[str], url: str, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGE_DATABASE_URL", url)
    code, out, error = forge(capsys, *words)
    assert (code, out) == (1, "")
    assert error == (
        f"error: FORGE_DATABASE_URL is for {kind}, and this works on PostgreSQL only\n"
        "fix: name the database by --database-url postgresql://user@host:5432/database\n"
    )
