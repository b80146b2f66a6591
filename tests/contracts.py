"""A pytest plugin: in come tests, some marked `@pytest.mark.contract("T1", …)`; out goes what became of them.

With `--contracts-report FILE` this is written there when the run ends: how many tests passed, which failed, how many
were skipped for which reason, and the outcome of every marked test that was collected. A test is "unfinished" until its
call has passed; a failure in any phase, or a skip, overrides that.

Under xdist the controller alone writes. Each worker attaches the numbers to its reports and hands over all that it
collected when it ends: the report of a worker that crashed carries none. `tools/tests.py` and `tools/contracts.py` read
the file.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

PROPERTY = "contract"
COLLECTED = pytest.StashKey[dict[str, list[str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--contracts-report", metavar="FILE", help="write there what became of the tests")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "contract(number, ...): promises of docs/contracts.md that it proves")
    collected = config.stash[COLLECTED] = {}
    report = config.getoption("--contracts-report")
    if hasattr(config, "workeroutput"):
        config.workeroutput[PROPERTY] = collected
    elif report:
        config.pluginmanager.register(Recorder(Path(config.rootpath, report), collected))


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    for marker in item.iter_markers("contract"):
        if not marker.args or not all(isinstance(number, str) for number in marker.args):
            raise pytest.UsageError(f'{item.nodeid}: write @pytest.mark.contract("T1"), one number or more')
        item.user_properties += [(PROPERTY, number) for number in marker.args]


def pytest_collection_finish(session: pytest.Session) -> None:
    numbers = session.config.stash[COLLECTED]
    for item in session.items:
        if found := contracts(item):
            numbers[item.nodeid] = found


def contracts(of: pytest.Item | pytest.TestReport) -> list[str]:
    return sorted({str(value) for name, value in of.user_properties if name == PROPERTY})


def reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped, on one line."""
    known = getattr(report, "wasxfail", None)
    if known is not None:
        return f"known to fail: {known}"
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return " ".join(told.removeprefix("Skipped: ").split()) or "no reason given"


class Recorder:
    def __init__(self, path: Path, numbers: dict[str, list[str]]) -> None:
        self._path = path
        self._numbers = numbers
        self._outcomes: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        path.unlink(missing_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if found := contracts(report):
            self._numbers[report.nodeid] = found
        before = self._outcomes.get(report.nodeid, "unfinished")
        if (
            report.outcome == "failed"
            or (report.outcome == "skipped" and before != "failed")
            or (report.outcome == "passed" and report.when == "call" and before == "unfinished")
        ):
            self._outcomes[report.nodeid] = report.outcome
        if report.outcome == "skipped":
            self._reasons[report.nodeid] = reason(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be collected is one that failed; one that is skipped as a whole counts as one skip."""
        if report.outcome != "passed":
            self._outcomes[report.nodeid] = report.outcome
            self._reasons[report.nodeid] = reason(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of xdist has ended; one that crashed hands over nothing."""
        self._numbers.update(getattr(node, "workeroutput", {}).get(PROPERTY, {}))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        by_outcome = Counter(self._outcomes.values())
        skipped = [self._reasons[test] for test, outcome in self._outcomes.items() if outcome == "skipped"]
        report = {
            "exit": int(exitstatus),
            "passed": by_outcome["passed"],
            "failed": sorted(test for test, outcome in self._outcomes.items() if outcome == "failed"),
            "skipped": Counter(skipped),
            "tests": [
                {"test": test, "contracts": numbers, "outcome": self._outcomes.get(test, "unfinished")}
                for test, numbers in sorted(self._numbers.items())
            ],
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(report, indent=1) + "\n")
