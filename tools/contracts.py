"""Prints what Forge promises and what proves it: in come docs/contracts.md and a test run, out a table.

Exits non-zero when a promise that the page calls kept has no passing test or a failing one, when a test
names a number that the page does not have, or when the test run itself failed or was not of all tests.
"""

import argparse
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "contracts.md"
REPORT = ROOT / "build" / "contracts.json"
TESTS = [sys.executable, str(ROOT / "tools" / "tests.py")]
"""Writes the report."""
ROW = re.compile(r"^\| (?P<number>[A-Z]\d+) \| (?P<status>\w+) \| (?P<text>.+) \|$")


@dataclass
class Promise:
    number: str
    status: str
    text: str
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def broken(self) -> bool:
        return bool(self.failed) or (self.status == "kept" and not self.passed)

    @property
    def word(self) -> str:
        if self.failed:
            return "failing"
        if self.status == "kept" and not self.passed:
            return "unproved"
        return self.status


def read_page(page: str) -> dict[str, Promise]:
    promises: dict[str, Promise] = {}
    for line in page.splitlines():
        if found := ROW.match(line):
            promise = Promise(found["number"], found["status"], found["text"])
            if promise.status not in ("kept", "planned"):
                raise SystemExit(f"error: {promise.number} is {promise.status!r}\nfix: write kept or planned")
            if promise.number in promises:
                raise SystemExit(f"error: {promise.number} is listed twice\nfix: a number is given once")
            promises[promise.number] = promise
    return promises


def add_outcomes(promises: dict[str, Promise], tests: list[dict[str, Any]]) -> list[str]:
    """Files every test under the promises that it names; returns a complaint for each unknown number.

    A test that did not finish counts as failed, one that was skipped as nothing.
    """
    unknown: list[str] = []
    for entry in tests:
        for number in entry["contracts"]:
            if number not in promises:
                unknown.append(f"{entry['test']} names {number}, which docs/contracts.md does not have")
            elif entry["outcome"] == "passed":
                promises[number].passed.append(entry["test"])
            elif entry["outcome"] in ("failed", "unfinished"):
                promises[number].failed.append(entry["test"])
    return unknown


def about_the_run(report: dict[str, Any]) -> list[str]:
    """Why the run as a whole is no proof: it failed, or tests were left out."""
    complaints = []
    if (status := report.get("exit")) != 0:
        complaints.append(f"the test run failed (exit status {status})")
    if not report.get("all"):
        complaints.append("the test run was not of all tests")
    return complaints


def by_function(tests: list[str]) -> list[str]:
    """Test names as under tests/, the cases of a parametrized one counted."""
    counts: dict[str, int] = {}
    for test in tests:
        name = test.partition("[")[0].removeprefix("tests/")
        counts[name] = counts.get(name, 0) + 1
    return [name if count == 1 else f"{name} ×{count}" for name, count in counts.items()]


def show(promises: dict[str, Promise]) -> None:
    if not sys.stdout.isatty():
        for promise in promises.values():
            print(f"{promise.number:<4}{promise.word:<9}{promise.text}")
            for mark, tests in (("ok", promise.passed), ("FAILED", promise.failed)):
                for name in by_function(tests):
                    print(f"{'':<13}{mark} {name}")
        return
    styles = {"kept": "green", "planned": "dim", "unproved": "bold red", "failing": "bold red"}
    table = Table("", "", "promise", "proved by", show_lines=False, pad_edge=False)
    for promise in promises.values():
        proof = Text("\n".join(by_function(promise.passed)), style="green")
        if promise.failed:
            proof.append("\n".join(["", *by_function(promise.failed)]), style="red")
        table.add_row(promise.number, Text(promise.word, styles[promise.word]), Text(promise.text), proof)
    Console().print(table)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Print every promise with the tests that passed for it.")
    parser.add_argument("--reuse", action="store_true", help="take the last run's outcome, run nothing")
    parser.add_argument("--quiet", action="store_true", help="print only what is wrong, and how many are kept")
    options = parser.parse_args(arguments)

    status = 0
    if not options.reuse:
        REPORT.unlink(missing_ok=True)
        status = subprocess.run(TESTS, cwd=ROOT).returncode
    if not REPORT.exists():
        print("error: no test outcome in build/contracts.json\nfix: make test", file=sys.stderr)
        return 1

    promises = read_page(PAGE.read_text(encoding="utf-8"))
    report = json.loads(REPORT.read_text(encoding="utf-8"))
    if status:
        report["exit"] = status
    complaints = [*add_outcomes(promises, report["tests"]), *about_the_run(report)]
    if not options.quiet:
        show(promises)
        print()

    kept = [promise for promise in promises.values() if promise.status == "kept"]
    broken = [promise for promise in promises.values() if promise.broken]
    early = [promise.number for promise in promises.values() if promise not in kept and promise.passed]
    print(f"{len(promises)} promises, {len(kept)} kept, {len(promises) - len(kept)} planned")
    if early:
        print(f"planned, and already with a passing test: {', '.join(early)}")
    for promise in broken:
        why = "a test for it failed or did not finish" if promise.failed else "no test passed for it"
        print(f"error: {promise.number}: {why}", file=sys.stderr)
    for complaint in complaints:
        print(f"error: {complaint}", file=sys.stderr)
    return 1 if broken or complaints else 0


if __name__ == "__main__":
    sys.exit(main())
