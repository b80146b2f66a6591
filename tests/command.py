"""The `forge` command, in a directory of its own, with nothing of the developer's environment."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest


class Result(NamedTuple):
    code: int
    out: str
    err: str


Forge = Callable[..., Result]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FORGE_", "PG", "FORCE_COLOR"))}
    return {**kept, **more}


@pytest.fixture
def forge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Forge:
    """The command in this process, which spares the start of another; `process` is the real thing."""

    def run(*arguments: str, url: str | None = None, **variables: str) -> Result:
        from forge.cli import main

        out, err = io.StringIO(), io.StringIO()
        if url is not None:
            variables["FORGE_DATABASE_URL"] = url
        terminate = signal.getsignal(signal.SIGTERM)
        with monkeypatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.chdir(tmp_path)
            for name in os.environ.keys() - environment().keys():
                patch.delenv(name)
            for name, value in variables.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main(arguments)
        signal.signal(signal.SIGTERM, terminate)
        assert isinstance(ended.value.code, int)
        return Result(ended.value.code, out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def process(tmp_path: Path) -> Forge:
    """The command as people run it, to its end."""

    def run(*arguments: str, url: str | None = None, **variables: str) -> Result:
        if url is not None:
            variables["FORGE_DATABASE_URL"] = url
        done = subprocess.run(
            [sys.executable, "-m", "forge", *arguments],
            cwd=tmp_path,
            env=environment(**variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command and leave it running; what is left at the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, url: str | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "forge", *arguments],
            cwd=tmp_path,
            env=environment(**({"FORGE_DATABASE_URL": url} if url else {})),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)
