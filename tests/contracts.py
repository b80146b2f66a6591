"""A pytest plugin: in come tests marked `@pytest.mark.contract("T1", …)`, out goes what each proved.

With `--contracts-report FILE` the outcome of every marked test that was collected is written there when the run
ends, with the run's exit status and whether it was of all tests. A test is "unfinished" until its call has passed;
a failure in any phase, or a skip, overrides that.

Under xdist the controller alone writes. Each worker attaches the numbers to its reports and hands over all that it
collected when it ends: the report of a worker that crashed carries none. `tools/contracts.py` reads the file.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import pytest

PROPERTY = "contract"


class Collected(TypedDict):
    numbers: dict[str, list[str]]
    deselected: int


COLLECTED = pytest.StashKey[Collected]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--contracts-report", metavar="FILE", help="write there what each contract test proved")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "contract(number, ...): promises of docs/contracts.md that it proves")
    collected = config.stash[COLLECTED] = Collected(numbers={}, deselected=0)
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


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    if items:
        items[0].config.stash[COLLECTED]["deselected"] += len(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    numbers = session.config.stash[COLLECTED]["numbers"]
    for item in session.items:
        if found := contracts(item):
            numbers[item.nodeid] = found


def contracts(of: pytest.Item | pytest.TestReport) -> list[str]:
    return sorted({str(value) for name, value in of.user_properties if name == PROPERTY})


def is_of_all_tests(config: pytest.Config, deselected: int) -> bool:
    narrowed = any(config.getoption(option, None) for option in ("lf", "ignore", "ignore_glob"))
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not narrowed and not deselected


class Recorder:
    def __init__(self, path: Path, collected: Collected) -> None:
        self._path = path
        self._numbers = collected["numbers"]
        self._collected = [collected]
        self._outcomes: dict[str, str] = {}
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

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of xdist has ended; one that crashed hands over nothing."""
        if collected := getattr(node, "workeroutput", {}).get(PROPERTY):
            self._numbers.update(collected["numbers"])
            self._collected.append(collected)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        deselected = sum(collected["deselected"] for collected in self._collected)
        report = {
            "exit": int(exitstatus),
            "all": is_of_all_tests(session.config, deselected),
            "tests": [
                {"test": test, "contracts": numbers, "outcome": self._outcomes.get(test, "unfinished")}
                for test, numbers in sorted(self._numbers.items())
            ],
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(report, indent=1) + "\n")
