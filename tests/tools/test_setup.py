"""Setting up: done once for a lock and a pyproject, from a lock that names no place and trusts only hashes."""

import re
from pathlib import Path

import pytest

from tools import setup

LOCK = setup.LOCK.read_text()
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")


@pytest.fixture
def installs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Another tree to set up, where installing only leaves what tells that it was done."""
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    for name, path in {
        "ROOT": tmp_path,
        "VENV": venv,
        "LOCK": tmp_path / "dev.lock",
        "PYPROJECT": tmp_path / "pyproject.toml",
        "STAMP": venv / "stamp",
        "JAVA_TRIED": venv / "java-tried",
        "JARS": venv / "jars",
        "CLIENTS": tmp_path / "clients",
        "CLIENTS_BUILT": venv / "clients",
        "PACKAGES_BUILT": tmp_path / "clients" / "packages",
        "STATIC": tmp_path / "static",
    }.items():
        monkeypatch.setattr(setup, name, path)
    setup.LOCK.write_text(LOCK)
    setup.PYPROJECT.write_text("[project]")
    (tmp_path / "clients" / "console" / "src").mkdir(parents=True)
    (tmp_path / "clients" / "package-lock.json").write_text("{}")
    commands: list[str] = []

    def run(command: list[str], fix: str, env: dict[str, str] | None = None) -> str:
        commands.append(" ".join(command))
        if "venv" in command:
            (venv / "bin" / "python").touch()
        if "forge.pipeline.jars" in command:
            (tmp_path / "delta.jar").touch()
            return f"{tmp_path / 'delta.jar'}\n"
        if "build" in command:
            (tmp_path / "static" / "console").mkdir(parents=True, exist_ok=True)
            (tmp_path / "static" / "console" / "index.html").touch()
        return ""

    monkeypatch.setattr(setup, "run", run)
    monkeypatch.setattr(setup, "need_ensurepip", lambda screen: None)
    monkeypatch.setattr(setup, "has_java", lambda: True)
    monkeypatch.setattr(setup, "node_version", lambda: setup.OLDEST_NODE)
    monkeypatch.setattr("subprocess.call", lambda *_, **__: 0)
    monkeypatch.setattr("sys.argv", ["setup.py"])
    return commands


def test_the_first_run_installs_from_the_lock_with_hashes(installs: list[str]) -> None:
    assert setup.main() == 0
    from_the_lock = [command for command in installs if str(setup.LOCK) in command]
    assert from_the_lock
    assert all("--require-hashes" in command for command in from_the_lock)
    editable, jars, packages, build = installs[-4:]
    assert "--offline" in editable
    assert "--editable" in editable
    assert "forge.pipeline.jars" in jars
    assert packages.startswith("npm ci")
    assert build.startswith("npm run build")


def test_a_second_run_does_nothing(
    installs: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert setup.main() == 0
    installs.clear()
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["setup.py", "--quiet"])
    assert setup.main() == 0
    assert installs == []
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["LOCK", "PYPROJECT"])
def test_a_changed_lock_or_pyproject_is_installed_again(installs: list[str], name: str) -> None:
    assert setup.main() == 0
    stamp = setup.wanted_stamp()
    with getattr(setup, name).open("a") as file:
        file.write("\n# changed\n")
    assert setup.wanted_stamp() != stamp
    installs.clear()
    assert setup.main() == 0
    assert installs
    assert setup.is_current()


def test_another_place_is_another_stamp(installs: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stamp = setup.wanted_stamp()
    monkeypatch.setattr(setup, "ROOT", tmp_path / "moved")
    assert setup.wanted_stamp() != stamp


def test_an_installation_that_fails_is_begun_again(installs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert setup.main() == 0
    setup.PYPROJECT.write_text("[project]\n# changed")
    works = setup.run

    def fails(command: list[str], fix: str, env: dict[str, str] | None = None) -> str:
        raise setup.SetupError("no network", fix)

    monkeypatch.setattr(setup, "run", fails)
    assert setup.main() == 1
    assert not setup.is_current()
    monkeypatch.setattr(setup, "run", works)
    assert setup.main() == 0
    assert setup.is_current()


def test_an_interpreter_that_is_gone_is_set_up_again(installs: list[str]) -> None:
    assert setup.main() == 0
    (setup.VENV / "bin" / "python").unlink()
    assert not setup.is_current()


def test_jars_that_are_gone_are_fetched_again(installs: list[str], tmp_path: Path) -> None:
    assert setup.main() == 0
    installs.clear()
    (tmp_path / "delta.jar").unlink()
    assert setup.main() == 0
    assert [command for command in installs if "forge.pipeline.jars" in command] == installs != []


def test_without_a_network_for_jars_all_else_is_set_up(
    installs: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    works = setup.run

    def fails(command: list[str], fix: str, env: dict[str, str] | None = None) -> str:
        if "forge.pipeline.jars" in command:
            raise setup.SetupError("python failed", fix, "error: no network\nfix: connect")
        return works(command, fix, env)

    monkeypatch.setattr(setup, "run", fails)
    assert setup.main() == 0
    assert setup.is_current()
    assert not setup.has_jars()
    assert "no network" in capsys.readouterr().out


@pytest.mark.parametrize("carried", setup.JAVAS)
def test_java_is_installed_once_on_debian(installs: list[str], monkeypatch: pytest.MonkeyPatch, carried: str) -> None:
    works = setup.run

    def fails(command: list[str], fix: str, env: dict[str, str] | None = None) -> str:
        if "apt-get" in command and "install" in command and carried not in command:
            raise setup.SetupError("no such package", fix)
        return works(command, fix, env)

    monkeypatch.setattr(setup, "run", fails)
    monkeypatch.setattr(setup, "debian_root", lambda: True)
    monkeypatch.setattr(setup, "has_java", lambda: any(carried in command for command in installs))
    assert setup.main() == 0
    assert sum(carried in command for command in installs) == 1
    assert setup.has_jars()
    installs.clear()
    assert setup.main() == 0
    assert not any("install" in command for command in installs)


def test_elsewhere_the_missing_java_is_named(
    installs: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "debian_root", lambda: False)
    monkeypatch.setattr(setup, "has_java", lambda: False)
    assert setup.main() == 0
    assert setup.JAVAS[0] in capsys.readouterr().out
    assert not any("apt-get" in command or "forge.pipeline.jars" in command for command in installs)


def test_the_browsers_side_is_built_again_when_it_changed(installs: list[str]) -> None:
    assert setup.main() == 0
    installs.clear()
    (setup.CLIENTS / "console" / "src" / "main.ts").write_text("// changed")
    assert setup.main() == 0
    assert [command.split(" --")[0] for command in installs] == ["npm run build"]
    installs.clear()
    (setup.CLIENTS / "package-lock.json").write_text('{"packages": {}}')
    assert setup.main() == 0
    assert [command.split(" --")[0] for command in installs] == ["npm ci", "npm run build"]


@pytest.mark.parametrize("version", [0, 18])
def test_without_node_all_else_is_set_up(
    installs: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], version: int
) -> None:
    monkeypatch.setattr(setup, "node_version", lambda: version)
    assert setup.main() == 0
    assert "Node.js" in capsys.readouterr().out
    assert not any(command.startswith("npm") for command in installs)
    assert setup.is_current()


def requirements() -> list[str]:
    """The lock's requirements, each with its hashes in one line, without comments."""
    lines = [line for line in LOCK.splitlines() if not line.lstrip().startswith("#")]
    return [line for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.strip()]


def test_every_locked_requirement_is_pinned_with_a_hash() -> None:
    assert len(requirements()) > 30
    for requirement in requirements():
        assert re.match(r"[a-z0-9][a-z0-9._-]*==[0-9]", requirement), requirement
        assert HASH.search(requirement), requirement


def test_the_lock_names_no_place() -> None:
    assert "://" not in LOCK
    for line in LOCK.splitlines():
        assert not re.search(r"(^|[\s=@'\"])(/|~/|\.\.?/|file:|-e\b|--(extra-)?index-url|--find-links)", line), line


def test_the_installer_comes_from_the_lock_with_its_hashes() -> None:
    assert setup.locked_uv().startswith("uv==")
    assert len(HASH.findall(setup.locked_uv())) == len(setup.locked_uv().splitlines()) - 1
