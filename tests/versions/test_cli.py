"""`forge versions` as people and programs use it."""

import asyncio
import io
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from forge.app import Forge
from forge.changelog.install import install as install_log
from forge.cli import main
from forge.embedded import PostgresServer
from forge.postgres.connection import Connection, connect
from forge.versions.documents import delete, find
from forge.versions.identity import change_identity
from forge.versions.install import installed
from tests.serve.serving import serving
from tests.versions.school import PLANS, STUDENTS, copy_in_files, copy_in_sqlite, school_database, source_of

pytestmark = pytest.mark.command


class Done(NamedTuple):
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    with school_database(server) as found:
        yield found


@pytest.fixture
def school(url: str) -> Iterator[Connection]:
    with connect(url) as connection:
        yield connection


@pytest.fixture
def forge(url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("FORGE_TOKEN", raising=False)

    def run(*words: str, code: int = 0, database: str = url) -> Done:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main(["--database-url", database, "versions", *words])
        assert ended.value.code == code, err.getvalue()
        return Done(out.getvalue(), err.getvalue())

    return run


def lines(done: Done) -> list[Any]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_init(forge: Run, empty_database: str) -> None:
    missing = forge("available", database=empty_database, code=1)
    assert missing.stderr == "error: change versions are not installed in this database\nfix: forge versions init\n"
    assert lines(forge("init", "--json", database=empty_database))[0]["made"] is True
    assert "were installed already" in forge("init", database=empty_database).stdout
    with connect(empty_database) as connection:
        assert installed(connection)
    assert lines(forge("available", "--json", database=empty_database)) == [{"oldest": 1, "newest": 0}]


def test_printed_sql_makes_the_tables(forge: Run, empty_database: str) -> None:
    script = forge("init", "--print", database="postgresql://nobody@127.0.0.1:1/nowhere").stdout
    with connect(empty_database) as connection:
        connection.execute(script.encode())
        assert installed(connection)


@pytest.mark.contract("V9")
def test_sql_server_is_printed_only(forge: Run) -> None:
    script = forge("init", "--dialect", "sqlserver", "--print").stdout
    for name in ("TABLE forge_versions.document ", "PROCEDURE forge_versions.newest", "TRIGGER forge_versions."):
        assert name in script
    assert "sqlcmd" in forge("init", "--dialect", "sqlserver", code=1).stderr
    assert "--dialect" in forge("init", "--dialect", "oracle", code=2).stderr


def test_available_and_changes(forge: Run, school: Connection) -> None:
    assert forge("available").stdout == "oldest  1\nnewest  10\n"
    student, plan = find(school, STUDENTS, {"number": 1}), find(school, PLANS, {"plan": "P2"})
    assert student is not None
    assert plan is not None
    change_identity(school, student, {"number": 1001})
    delete(school, plan)
    shown = forge("changes", "ed-fi/students", "--min", "11", "--kind", "stream").stdout.splitlines()
    assert [line.split()[:3] for line in shown] == [
        ["version", "id", "what"],
        ["11", str(student.id), "key"],
        ["11", str(student.id), "upsert"],
    ]
    assert '{"number":1} → {"number":1001}' in shown[1]
    changed = lines(forge("changes", "ed-fi/graduationPlans", "--min", "11", "--json"))
    assert [item.get("identity") for item in changed] == [{"plan": "P1"}, None]
    assert changed[-1] == {"next": None}
    gone = lines(forge("changes", "ed-fi/graduationPlans", "--min", "11", "--kind", "deletes", "--json"))
    assert (gone[0]["type"], gone[0]["changeVersion"], gone[0]["id"]) == ("delete", 12, plan.id)
    page = lines(forge("changes", "ed-fi/students", "--limit", "3", "--json"))
    rest = lines(forge("changes", "ed-fi/students", "--after", page[-1]["next"], "--json"))
    assert [item["id"] for item in page[:-1] + rest[:-1]] == sorted(source_of(school, STUDENTS))
    assert "--after" in forge("changes", "ed-fi/students", "--limit", "3").stdout
    for words, told in (
        (("ed-fi/students", "--min", "9", "--max", "3"), "before it begins"),
        (("ed-fi/students", "--min", "99"), "beyond the newest"),
        (("ed-fi/students", "--after", "x"), "page token"),
        (("ed-fi/teachers",), "there is no resource ed-fi/teachers"),
        (("students",), "is not a resource"),
    ):
        assert told in forge("changes", *words, code=1).stderr
    school.execute("UPDATE forge_versions.setting SET oldest = 5")
    assert "oldest that is known is 5" in forge("changes", "ed-fi/students", "--min", "4", code=1).stderr
    assert "--min" in forge("changes", "ed-fi/students", "--min", "-1", code=2).stderr


def test_sync_from_a_database(forge: Run, url: str, school: Connection, tmp_path: Path) -> None:
    file, folder = tmp_path / "plans.db", tmp_path / "plans"
    assert forge("sync", "ed-fi/graduationPlans", "--to", str(file)).stdout == "✓ up to version 10   ✓ 5 upserts\n"
    elsewhere = "postgresql://nobody@127.0.0.1:1/nowhere"
    forge("sync", "ed-fi/graduationPlans", "--to", str(folder), "--from", url, database=elsewhere)
    plan = find(school, PLANS, {"plan": "P2"})
    assert plan is not None
    delete(school, plan)
    (done,) = lines(forge("sync", "ed-fi/graduationPlans", "--to", str(file), "--json"))
    assert (done["upto"], done["deletions"], done["upserts"], done["again"]) == (11, 1, 0, None)
    forge("sync", "ed-fi/graduationPlans", "--to", str(folder), "--form", "files")
    assert copy_in_sqlite(file, PLANS) == copy_in_files(folder, PLANS) == source_of(school, PLANS)
    assert "is a copy of" in forge("sync", "ed-fi/students", "--to", str(folder), code=1).stderr
    assert "there is no resource" in forge("sync", "ed-fi/teachers", "--to", str(file), code=1).stderr


async def test_sync_follows_a_server(url: str, school: Connection, tmp_path: Path) -> None:
    install_log(school)
    file = tmp_path / "plans.db"
    async with serving(Forge(url)) as served:
        words = ("versions", "sync", "ed-fi/graduationPlans", "--to", str(file), "--from", served.url)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "forge", *words, "--follow", "--interval", "0.1"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(30):
                assert (await process.stdout.readline()).decode() == "✓ up to version 10   ✓ 5 upserts\n"
                plan = find(school, PLANS, {"plan": "P2"})
                assert plan is not None
                delete(school, plan)
                assert (await process.stdout.readline()).decode() == "✓ up to version 11   ✓ 1 delete\n"
            assert copy_in_sqlite(file, PLANS) == source_of(school, PLANS)
        finally:
            process.send_signal(signal.SIGINT)
            out, err = await process.communicate()
    assert (process.returncode, out.decode(), err.decode()) == (0, "", "")


def test_a_server_that_is_not_there(forge: Run, tmp_path: Path) -> None:
    words = ("sync", "ed-fi/graduationPlans", "--to", str(tmp_path / "plans.db"), "--from", "http://127.0.0.1:1")
    assert "cannot be reached" in forge(*words, code=1).stderr
    assert "--subject is for databases" in forge(*words, "--subject", "ada", code=2).stderr


def test_strategy(forge: Run) -> None:
    assert forge("strategy").stdout == "journal\n"
    assert forge("strategy", "monotonic").stdout == "✓ the strategy is monotonic; it was journal\n"
    assert lines(forge("strategy", "denormalized", "--json")) == [{"strategy": "denormalized", "before": "monotonic"}]
    assert len(lines(forge("changes", "ed-fi/graduationPlans", "--min", "1", "--json"))) == 6
    forge("strategy", "fast", code=2)


@pytest.mark.contract("V7")
def test_maintain(forge: Run) -> None:
    assert lines(forge("maintain", "--json"))[0]["oldest"] == 1
    assert forge("maintain", "--keep-versions", "3").stdout.startswith("✓ oldest 8")
    assert lines(forge("available", "--json")) == [{"oldest": 8, "newest": 10}]
    assert "--keep-age" in forge("maintain", "--keep-age", "soon", code=2).stderr
    assert "oldest 8" in forge("maintain", "--keep-age", "30d").stdout


def test_grant_and_revoke(forge: Run, school: Connection) -> None:
    assert forge("declare", "ed-fi/graduationPlans", "--by-access").stdout.endswith("shown by access\n")
    plan = find(school, PLANS, {"plan": "P1"})
    assert plan is not None

    def seen() -> list[tuple[str, int]]:
        asked = ("--kind", "stream", "--min", "11", "--subject", "ada", "--json")
        found = lines(forge("changes", "ed-fi/graduationPlans", *asked))
        return [(item["type"], item["changeVersion"]) for item in found[:-1]]

    assert seen() == []
    assert forge("grant", str(plan.id), "ada").stdout == f"✓ ada sees document {plan.id}, at version 11\n"
    assert seen() == [("upsert", 11)]
    assert lines(forge("revoke", str(plan.id), "ada", "--json"))[0]["version"] == 12
    assert seen() == [("delete", 12)]
    assert "did not see" in forge("revoke", str(plan.id), "ada").stdout
    forge("declare", "ed-fi/graduationPlans", "--open")
    granted = forge("grant", str(plan.id), "ada").stdout
    assert "is open to all" in granted
    assert "forge versions declare ed-fi/graduationPlans --by-access" in granted
    assert "there is no document 99999" in forge("grant", "99999", "ada", code=1).stderr


@pytest.mark.parametrize(
    "command",
    ["init", "declare", "available", "changes", "sync", "strategy", "maintain", "grant", "revoke"],
)
def test_help_has_examples(command: str) -> None:
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit):
        main(["versions", command, "--help"])
    assert f"forge versions {command}" in out.getvalue().partition("Examples:")[2]
