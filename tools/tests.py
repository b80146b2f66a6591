"""Run all tests: in come words for pytest; out come progress, failures, and a summary that ends in one line.

There are three parts: most tests, in several processes of pytest; the tests of the pipeline, one after the other in a
process beside them, because one Spark is enough for a machine; and, after those, Vitest's in clients/. Every part
writes what became of its tests below `build/tests`. The promises that they prove are merged into
`build/contracts.json`, which `tools/contracts.py` reads.

Invariants:
- The exit code is 0 only when every part ran to its end and no test failed.
- A part that ends without saying what became of its tests counts as one failure.
- The last line but one is for machines: `total: 1 passed, 0 failed, 0 skipped`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
BUILD: Final = ROOT / "build" / "tests"
BYTECODE: Final = ROOT / "build" / "bytecode"
CONTRACTS: Final = ROOT / "build" / "contracts.json"
CLIENTS: Final = ROOT / "clients"
PYTEST: Final = str(ROOT / ".venv" / "bin" / "pytest")
PROCESSES: Final = ("-n", "4", "--dist", "worksteal")
QUIET: Final = ("-q", "-q", "-rN", "-m", "not long")
"""No header and no list of skips: the summary here has them."""
ENDS: Final = (0, 1, 5)
"""How pytest ends when it ran: all passed, some failed, none was chosen."""
NODE: Final = "Node.js 20 or newer is not installed"
TEST: Final = re.compile(r"^\s*(?:test|it)(?:\.\w+)?\(", re.MULTILINE)


@dataclass
class Outcome:
    """What became of the tests of one part."""

    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """The command that runs each alone."""
    skipped: Counter[str] = field(default_factory=Counter)
    """How many, by reason."""
    contracts: list[dict[str, Any]] = field(default_factory=list)

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(
            self.passed + other.passed,
            {**self.failed, **other.failed},
            self.skipped + other.skipped,
            self.contracts + other.contracts,
        )

    def lines(self, seconds: float) -> list[str]:
        """The summary.

        >>> print(*Outcome(1200, {}, Counter({"no NATS": 2})).lines(61.0), sep="\\n")
        skipped: 2 no NATS
        total: 1200 passed, 0 failed, 2 skipped
        1,200 passed, 0 failed, 2 skipped in 1:01
        """
        skipped, failed = self.skipped.total(), len(self.failed)
        minutes, rest = divmod(round(seconds), 60)
        return [
            *(f"skipped: {count} {reason}" for reason, count in self.skipped.most_common()),
            *(f"failed: {name}\n  alone: {command}" for name, command in self.failed.items()),
            f"total: {self.passed} passed, {failed} failed, {skipped} skipped",
            f"{self.passed:,} passed, {failed:,} failed, {skipped:,} skipped in {minutes}:{rest:02}",
        ]


def ran(name: str, words: list[str], log: Path | None) -> Outcome:
    """Run pytest once; what it prints goes to the log, else to the terminal."""
    report = BUILD / f"{name}.json"
    command = [PYTEST, *QUIET, "--contracts-report", str(report), *words]
    return of_pytest(name, called(command, log), report)


def called(command: list[str], log: Path | None) -> int:
    """Run to the end and return its exit status."""
    if log is None:
        return subprocess.call(command, cwd=ROOT, env=environment())
    with log.open("w") as file:
        return subprocess.call(
            command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )


def environment() -> dict[str, str]:
    """The variables of this process; bytecode that may not be written beside its source is kept below `build`.

    The tests start hundreds of processes. Without bytecode each compiles all that it imports, which costs more than
    what most of them do.
    """
    variables = dict(os.environ)
    if variables.pop("PYTHONDONTWRITEBYTECODE", ""):
        variables.setdefault("PYTHONPYCACHEPREFIX", str(BYTECODE))
    return variables


def of_pytest(name: str, status: int, report: Path) -> Outcome:
    """What a run of pytest reported."""
    try:
        told = json.loads(report.read_text())
    except (OSError, ValueError):
        told = {"passed": 0, "failed": [], "skipped": {}, "tests": []}
        status = status or 3
    failed = {test: f".venv/bin/pytest -n 0 '{test}'" for test in told["failed"]}
    if status not in ENDS or (status == 1 and not failed):
        failed[f"{name} ended with status {status} before its end"] = "make test"
    return Outcome(told["passed"], failed, Counter(told["skipped"]), told["tests"])


def vitest() -> Outcome:
    """Run the tests in clients/, or say how many were not for want of Node.js."""
    if not (CLIENTS / "node_modules").exists() or shutil.which("npm") is None:
        files = [file for file in CLIENTS.glob("*/test/*.ts") if "node_modules" not in file.parts]
        return Outcome(skipped=Counter({NODE: sum(len(TEST.findall(file.read_text())) for file in files)}))
    report = BUILD / "clients.json"
    told = ["--reporter=default", "--reporter=json", f"--outputFile.json={report}"]
    status = called(["npm", "test", "--prefix", str(CLIENTS), "--", *told], BUILD / "clients.log")
    return of_vitest(status, report)


def of_vitest(status: int, report: Path) -> Outcome:
    """What Vitest reported; a file that could not be read as tests is a failure too."""
    outcome = Outcome()
    try:
        files = json.loads(report.read_text())["testResults"]
    except (OSError, ValueError):
        files, status = [], status or 3
    for file in files:
        path = os.path.relpath(file["name"], CLIENTS)
        alone = f"npm test --prefix clients -- {path}"
        for test in file["assertionResults"]:
            if test["status"] == "passed":
                outcome.passed += 1
            elif test["status"] == "failed":
                outcome.failed[f"clients/{path} {test['fullName']}"] = f"{alone} -t '{test['title']}'"
            else:
                outcome.skipped["left out in clients/"] += 1
        if file["status"] == "failed" and not file["assertionResults"]:
            outcome.failed[f"clients/{path}"] = alone
    if status and not outcome.failed:
        outcome.failed[f"clients ended with status {status} before its end"] = "npm test --prefix clients"
    return outcome


class Beside(threading.Thread):
    """The tests of the pipeline, then Vitest's."""

    def __init__(self, words: list[str]) -> None:
        super().__init__(daemon=True)
        self.outcomes: dict[str, Outcome] = {}
        self._words = words

    def run(self) -> None:
        self.outcomes["pipeline"] = ran("pipeline", ["tests/pipeline", *self._words], BUILD / "pipeline.log")
        if not self._words:
            self.outcomes["clients"] = vitest()


def run_all(words: list[str]) -> Outcome:
    """Run every part; with words for pytest, those tests of pytest's that they choose."""
    if any(Path(ROOT, word.partition("::")[0]).exists() for word in words):
        return ran("chosen", [*PROCESSES, *words], None)
    beside = Beside(words)
    beside.start()
    outcome = ran("most", [*PROCESSES, "--ignore", "tests/pipeline", *words], None)
    beside.join()
    for name in ("pipeline", "clients"):
        part = beside.outcomes.get(name, Outcome(failed={f"{name} did not run": "make test"} if not words else {}))
        if part.failed:
            print((BUILD / f"{name}.log").read_text(errors="replace"))
        outcome += part
    return outcome


def main(words: list[str]) -> int:
    began = time.monotonic()
    shutil.rmtree(BUILD, ignore_errors=True)
    CONTRACTS.unlink(missing_ok=True)
    BUILD.mkdir(parents=True)
    outcome = run_all(words)
    status = 1 if outcome.failed else 0
    proved = {"exit": status, "all": not words, "tests": outcome.contracts}
    CONTRACTS.write_text(json.dumps(proved, indent=1) + "\n")
    print("", *outcome.lines(time.monotonic() - began), sep="\n", flush=True)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
