"""What counts as proof of a promise: a call that passed, in a run of all tests that passed."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import contracts

pytest_plugins = ["pytester"]

PAGE = """
| number | status | promise |
| --- | --- | --- |
| T1 | kept | One. |
| T2 | planned | Two. |
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\ntestpaths = .")
    return pytester


def report_of(project: pytest.Pytester, source: str, *arguments: str) -> dict[str, Any]:
    project.makepyfile("import os\nimport pytest\npytestmark = pytest.mark.contract('T1')\n" + source)
    plugins = ("-p", "tests.contracts", "-p", "xdist.plugin", "-p", "no:cacheprovider")
    project.runpytest_subprocess(*plugins, "--contracts-report", "report.json", *arguments)
    report: dict[str, Any] = json.loads((project.path / "report.json").read_text())
    return report


def outcomes(report: dict[str, Any]) -> dict[str, str]:
    assert all(entry["contracts"] == ["T1"] for entry in report["tests"])
    return {entry["test"].partition("::test_")[2]: entry["outcome"] for entry in report["tests"]}


PHASES = """
@pytest.fixture
def broken_before():
    raise OSError

@pytest.fixture
def broken_after():
    yield
    raise OSError

def test_passes(): pass
def test_fails(): assert False
def test_fails_before(broken_before): pass
def test_fails_after(broken_after): pass
def test_skips(): pytest.skip("for want of a server")

@pytest.mark.skip
def test_is_skipped(): pass

@pytest.mark.xfail
def test_is_known_to_fail(): assert False
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_only_a_call_that_passed_is_a_pass(project: pytest.Pytester, workers: str) -> None:
    report = report_of(project, PHASES, "-n", workers)
    assert outcomes(report) == {
        "passes": "passed",
        "fails": "failed",
        "fails_before": "failed",
        "fails_after": "failed",
        "skips": "skipped",
        "is_skipped": "skipped",
        "is_known_to_fail": "skipped",
    }
    assert report["exit"] == pytest.ExitCode.TESTS_FAILED
    assert report["passed"] == 1
    assert len(report["failed"]) == 3
    assert report["skipped"] == {"for want of a server": 1, "unconditional skip": 1, "known to fail: ": 1}


@pytest.mark.parametrize("phase", ["set-up", "call"])
def test_a_test_in_which_a_worker_crashed_has_failed(project: pytest.Pytester, phase: str) -> None:
    source = f"""
@pytest.fixture(autouse=True)
def crash(request):
    if {phase == "set-up"} and request.node.name == "test_crashes": os._exit(1)

def test_crashes(): os._exit(1)
def test_passes(): pass
"""
    report = report_of(project, source, "-n", "1")
    assert outcomes(report) == {"crashes": "failed", "passes": "passed"}
    assert report["exit"] != 0


@pytest.mark.parametrize("phase", ["set-up", "call"])
def test_a_test_that_an_interrupt_left_is_unfinished(project: pytest.Pytester, phase: str) -> None:
    source = f"""
@pytest.fixture
def stop():
    if {phase == "set-up"}: raise KeyboardInterrupt

def test_first(): pass
def test_second(stop): raise KeyboardInterrupt
def test_third(): pass
"""
    report = report_of(project, source)
    assert outcomes(report) == {"first": "passed", "second": "unfinished", "third": "unfinished"}
    assert report["exit"] == pytest.ExitCode.INTERRUPTED


def test_a_file_that_cannot_be_collected_has_failed(project: pytest.Pytester) -> None:
    project.makepyfile(test_broken="import nothing_of_that_name")
    report = report_of(project, "def test_first(): pass")
    assert report["failed"] == ["test_broken.py"]


def test_a_run_that_is_killed_leaves_no_report(project: pytest.Pytester) -> None:
    (project.path / "report.json").write_text("of an earlier run")
    with pytest.raises(FileNotFoundError):
        report_of(project, "def test_crashes(): os._exit(0)")


def entry(outcome: str, *numbers: str) -> dict[str, Any]:
    return {"test": f"tests/test_it.py::test_{outcome}", "contracts": [*(numbers or ["T1"])], "outcome": outcome}


PASSED = entry("passed")


@pytest.mark.parametrize(
    ("report", "complaint"),
    [
        ({"exit": 0, "all": True, "tests": [PASSED]}, None),
        ({"exit": 0, "all": True, "tests": [PASSED, entry("skipped")]}, None),
        ({"exit": 0, "all": True, "tests": [PASSED, entry("failed", "T2")]}, "T2: a test for it failed"),
        ({"exit": 0, "all": True, "tests": [PASSED, entry("unfinished")]}, "T1: a test for it failed"),
        ({"exit": 0, "all": True, "tests": [entry("skipped")]}, "T1: no test passed"),
        ({"exit": 0, "all": True, "tests": []}, "T1: no test passed"),
        ({"exit": 0, "all": True, "tests": [PASSED, entry("passed", "T9")]}, "names T9"),
        ({"exit": 1, "all": True, "tests": [PASSED]}, "the test run failed"),
        ({"exit": 0, "all": False, "tests": [PASSED]}, "not of all tests"),
        ({"tests": [PASSED]}, "the test run failed"),
    ],
)
def test_what_the_last_run_proved(
    report: dict[str, Any],
    complaint: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept_at(tmp_path, monkeypatch).write_text(json.dumps(report))
    code = contracts.main(["--reuse"])
    said = capsys.readouterr().err
    assert code == (0 if complaint is None else 1)
    assert said == "" if complaint is None else complaint in said


def test_without_a_run_there_is_no_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept_at(tmp_path, monkeypatch)
    assert contracts.main(["--reuse"]) == 1
    assert "no test outcome" in capsys.readouterr().err


def test_the_exit_of_the_command_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = kept_at(tmp_path, monkeypatch)
    content = json.dumps({"exit": 0, "all": True, "tests": [PASSED]})
    write = f"import pathlib; pathlib.Path({str(report)!r}).write_text({content!r})"
    monkeypatch.setattr(contracts, "TESTS", [sys.executable, "-c", write])
    assert contracts.main([]) == 0
    monkeypatch.setattr(contracts, "TESTS", [sys.executable, "-c", f"{write}; raise SystemExit(3)"])
    assert contracts.main(["--quiet"]) == 1
    assert "exit status 3" in capsys.readouterr().err


def kept_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "contracts.md").write_text(PAGE)
    monkeypatch.setattr(contracts, "PAGE", tmp_path / "contracts.md")
    monkeypatch.setattr(contracts, "REPORT", tmp_path / "contracts.json")
    return tmp_path / "contracts.json"
