"""The package's own names: each is there, and none is imported before it is asked for, so that commands start soon."""

import subprocess
import sys

import pytest

import forge

INTERRUPTED_AT = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class Interrupts(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
from forge.cli import main
main(["serve", "shop:app"])
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_every_name_is_there_and_at_home() -> None:
    for name in [*forge.__all__, *forge._LATER]:
        assert getattr(forge, name) is not None
        assert name in dir(forge)
    assert forge.errors.ForgeError is forge.ForgeError
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        forge.nothing  # noqa: B018


def test_importing_it_imports_nothing_else() -> None:
    found = run(
        "import sys, forge; print(*(name for name in sys.modules if name.split('.')[0] in ('forge', 'psycopg')))"
    )
    assert found.stdout.split() == ["forge"], found.stderr


@pytest.mark.parametrize("name", ["forge.cli.command", "psycopg", "typer", "forge.cli.serve"])
def test_an_interrupt_while_a_command_is_imported_is_quiet(name: str) -> None:
    found = run(INTERRUPTED_AT.format(name=name))
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "")


def test_a_command_imports_no_other_command() -> None:
    found = run(
        "import sys; from forge.cli.command import application; application(['tail']);"
        " print(*sorted(name for name in sys.modules if name.startswith('forge.cli.') and 'register' in"
        " vars(sys.modules[name])))"
    )
    assert found.stdout.split() == ["forge.cli.tail"], found.stderr
