"""A pytest plugin: in come tests marked `@pytest.mark.contract("T1", …)`, out goes what each proved.

With `--contracts-report FILE` the outcome of every marked test is written there when the run ends. Under
xdist each worker attaches the numbers to its reports and the controller alone writes. A test has passed
only if its set-up, its call and its clean-up all did. `tools/contracts.py` reads the file.
"""

import json
from pathlib import Path

import pytest

PROPERTY = "contract"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--contracts-report", metavar="FILE", help="write there what each contract test proved")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "contract(number, ...): promises of docs/contracts.md that it proves")
    report = config.getoption("--contracts-report")
    if report and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(config.rootpath, report)))


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    for marker in item.iter_markers("contract"):
        if not marker.args or not all(isinstance(number, str) for number in marker.args):
            raise pytest.UsageError(f'{item.nodeid}: write @pytest.mark.contract("T1"), one number or more')
        item.user_properties += [(PROPERTY, number) for number in marker.args]


class Recorder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._numbers: dict[str, list[str]] = {}
        self._outcomes: dict[str, str] = {}
        path.unlink(missing_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        numbers = [str(value) for name, value in report.user_properties if name == PROPERTY]
        if not numbers:
            return
        self._numbers[report.nodeid] = sorted(set(numbers))
        before = self._outcomes.get(report.nodeid, "passed")
        if report.outcome == "failed" or before == "passed":
            self._outcomes[report.nodeid] = report.outcome

    def pytest_sessionfinish(self) -> None:
        tests = [
            {"test": test, "contracts": numbers, "outcome": self._outcomes[test]}
            for test, numbers in sorted(self._numbers.items())
        ]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({"tests": tests}, indent=1) + "\n")
