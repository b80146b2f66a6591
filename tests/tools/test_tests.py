"""The summary of all tests: every part counts, also one that ended before it said anything."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tools import tests as tool

REPORT = {
    "exit": 1,
    "passed": 3,
    "failed": ["tests/test_a.py::test_b[x y]"],
    "skipped": {"no NATS": 2},
    "tests": [{"test": "tests/test_a.py::test_c", "contracts": ["T1"], "outcome": "passed"}],
}


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that would have been run; each pytest leaves a report, Vitest one of a test that passed."""
    commands: list[str] = []

    def called(command: list[str], log: Path | None) -> int:
        commands.append(" ".join(command))
        if log is not None:
            log.write_text("what it printed\n")
        if command[0] == "npm":
            passed = {"status": "passed", "fullName": "a b", "title": "b"}
            file = {"name": str(tool.CLIENTS / "a.test.ts"), "status": "passed", "assertionResults": [passed]}
            (tool.BUILD / "clients.json").write_text(json.dumps({"testResults": [file]}))
            return 0
        Path(command[command.index("--contracts-report") + 1]).write_text(json.dumps({**REPORT, "failed": []}))
        return 0

    (tmp_path / "clients" / "node_modules").mkdir(parents=True)
    monkeypatch.setattr(tool, "BUILD", tmp_path / "build")
    monkeypatch.setattr(tool, "CONTRACTS", tmp_path / "contracts.json")
    monkeypatch.setattr(tool, "CLIENTS", tmp_path / "clients")
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(tool, "called", called)
    return commands


def report(tmp_path: Path, content: dict[str, Any]) -> Path:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(content))
    return path


def test_all_parts_are_added_up_and_the_last_line_tells(
    ran: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert tool.main([]) == 0
    assert len(ran) == 3
    *_, skipped, total, last = capsys.readouterr().out.splitlines()
    assert skipped == "skipped: 4 no NATS"
    assert total == "total: 7 passed, 0 failed, 4 skipped"
    assert last == "7 passed, 0 failed, 4 skipped in 0:00"
    merged = json.loads((tmp_path / "contracts.json").read_text())
    assert (merged["exit"], merged["all"], len(merged["tests"])) == (0, True, 2)


def test_a_run_of_chosen_tests_is_no_proof(ran: list[str], tmp_path: Path) -> None:
    assert tool.main(["-k", "name"]) == 0
    assert [("tests/pipeline" in command, "-k name" in command) for command in sorted(ran)] == [(True, True)] * 2
    assert not json.loads((tmp_path / "contracts.json").read_text())["all"]


def test_a_path_is_run_once(ran: list[str]) -> None:
    assert tool.main(["tests/tools/test_tests.py::test_a_path_is_run_once"]) == 0
    assert len(ran) == 1


def test_a_failure_is_named_with_the_command_that_runs_it_alone(tmp_path: Path) -> None:
    lines = tool.of_pytest("most", 1, report(tmp_path, REPORT)).lines(59.7)
    assert lines == [
        "skipped: 2 no NATS",
        "failed: tests/test_a.py::test_b[x y]\n  alone: .venv/bin/pytest -n 0 'tests/test_a.py::test_b[x y]'",
        "total: 3 passed, 1 failed, 2 skipped",
        "3 passed, 1 failed, 2 skipped in 1:00",
    ]


@pytest.mark.parametrize("status", [0, 1, 2, 3, 4])
def test_a_part_without_a_report_has_failed(tmp_path: Path, status: int) -> None:
    assert len(tool.of_pytest("most", status, tmp_path / "none").failed) == 1
    assert len(tool.of_vitest(status, tmp_path / "none").failed) == 1


@pytest.mark.parametrize("status", [2, 3, 4])
def test_a_part_that_was_interrupted_has_failed(tmp_path: Path, status: int) -> None:
    assert tool.of_pytest("most", status, report(tmp_path, {**REPORT, "failed": []})).failed


def test_no_test_chosen_is_no_failure(tmp_path: Path) -> None:
    empty = {**REPORT, "passed": 0, "failed": [], "skipped": {}, "tests": []}
    assert tool.of_pytest("most", 5, report(tmp_path, empty)) == tool.Outcome()


def test_failures_of_vitest(tmp_path: Path) -> None:
    tests = [{"status": status, "fullName": f"a {status}", "title": status} for status in ("passed", "failed", "todo")]
    files = [
        {"name": str(tool.CLIENTS / "x" / "a.test.ts"), "status": "failed", "assertionResults": tests},
        {"name": str(tool.CLIENTS / "x" / "b.test.ts"), "status": "failed", "assertionResults": []},
    ]
    assert tool.of_vitest(1, report(tmp_path, {"testResults": files})) == tool.Outcome(
        1,
        {
            "clients/x/a.test.ts a failed": "npm test --prefix clients -- x/a.test.ts -t 'failed'",
            "clients/x/b.test.ts": "npm test --prefix clients -- x/b.test.ts",
        },
        Counter({"left out in clients/": 1}),
    )


def test_without_node_its_tests_are_counted_as_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "typescript" / "test").mkdir(parents=True)
    (tmp_path / "typescript" / "test" / "a.test.ts").write_text("test('a', () => 1)\n  it.each([1])('b', f)\n")
    monkeypatch.setattr(tool, "CLIENTS", tmp_path)
    assert tool.vitest() == tool.Outcome(skipped=Counter({tool.NODE: 2}))


@pytest.mark.parametrize(
    ("given", "prefix"),
    [({}, None), ({"PYTHONDONTWRITEBYTECODE": "1"}, str(tool.BYTECODE))],
    ids=["beside its source", "not beside its source"],
)
def test_every_process_finds_bytecode(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], prefix: str | None
) -> None:
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    variables = tool.environment()
    assert "PYTHONDONTWRITEBYTECODE" not in variables
    assert variables.get("PYTHONPYCACHEPREFIX") == prefix
    assert variables["PATH"] == os.environ["PATH"]
