"""`forge pipeline` says what is wrong before it starts anything, and how its commands are used."""

from pathlib import Path

import pytest

from tests.command import Forge

pytestmark = pytest.mark.command

COMMANDS = ("run", "status", "verify", "as-of", "audit", "replay", "import", "versions", "maintain")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_and_the_flags_of_all(forge: Forge, command: str) -> None:
    shown = forge("pipeline", command, "--help")
    assert shown.code == 0
    assert f"forge pipeline {command}" in shown.out.split("Example", 1)[1]
    assert "--lake" in shown.out
    assert "Options of every command" in shown.out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("run", "--interval", "soon"), "--interval cannot be 'soon'"),
        (("run", "--verify", "x"), "--verify cannot be 'x'"),
        (("run", "--once", "--conf", "nonsense"), "--conf is 'nonsense'"),
        (("as-of", "--at", "yesterday", "--table", "orders"), "--at cannot be 'yesterday'"),
        (("as-of", "--at", "2026-01-01"), "give --table for one table, or --out for all"),
        (("as-of", "--at", "2026-01-01", "--key", "1"), "--key needs --table"),
        (("audit", "--since", "a while"), "--since cannot be 'a while'"),
        (("maintain", "--keep-bronze", "some"), "--keep-bronze cannot be 'some'"),
        (("import", "x.jsonl", "--envelope", "paper"), "paper"),
    ],
)
def test_a_wrong_option_is_one_line(forge: Forge, database: str, arguments: tuple[str, ...], problem: str) -> None:
    result = forge("pipeline", *arguments, "--database-url", database)
    assert result.code != 0
    assert problem in result.err
    assert "Traceback" not in result.err


def test_no_java_is_one_line_with_the_fix(process: Forge, database: str, tmp_path: Path) -> None:
    result = process("pipeline", "run", "--once", "-d", database, JAVA_HOME=str(tmp_path), PATH="/nonexistent")
    assert result.code == 1
    assert "Java" in result.err
    assert "fix: " in result.err
    assert not (tmp_path / ".forge").exists()


def test_an_unreachable_database_is_one_line_with_the_fix(forge: Forge) -> None:
    result = forge("pipeline", "run", "--once", "-d", "postgresql://nobody@127.0.0.1:1/none")
    assert result.code == 1
    assert "cannot reach the database" in result.err
