"""`forge codegen`: types from a module or from a server, written, checked, and errors that say what to do."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from forge.react.registry import Registry
from forge.serve.openapi import document
from tests import folders

pytestmark = pytest.mark.command

SHOP = """
import forge

app = forge.Forge()


@app.query(key="id")
async def items(ctx, colour: str = "red") -> list[dict[str, int]]:
    return await ctx.db.fetch("SELECT id FROM item ORDER BY id")
"""
ITEMS = "    items: { args: { colour?: string }; result: readonly Record<string, number>[] };"


def codegen(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forge", "codegen", "typescript", *arguments],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_types_of_a_module_are_written_and_checked(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    missing = codegen(tmp_path, "shop:app", "--out", "shop.ts", "--check")
    assert missing.returncode == 1
    assert missing.stderr == (
        "error: shop.ts is not what the application has\nfix: forge codegen typescript shop:app --out shop.ts\n"
    )
    assert codegen(tmp_path, "shop:app", "--out", "shop.ts").returncode == 0
    assert ITEMS in (tmp_path / "shop.ts").read_text()
    assert codegen(tmp_path, "shop:app", "--out", "shop.ts", "--check").returncode == 0
    other = codegen(tmp_path, "shop:app", "--name", "Shop", "--bigint", "--out", "shop.ts", "--check")
    assert other.stderr.endswith("fix: forge codegen typescript shop:app --name Shop --bigint --out shop.ts\n")
    assert codegen(tmp_path, "shop:app", "--out", "web/src/shop.ts").returncode == 0
    assert (tmp_path / "web" / "src" / "shop.ts").read_text() == (tmp_path / "shop.ts").read_text()


@pytest.fixture
def described(tmp_path: Path) -> Iterator[str]:
    """The URL of something that describes itself as an application does."""
    (tmp_path / "forge").mkdir()
    body = document(Registry(), title="", version="", security=False)
    (tmp_path / "forge/openapi.json").write_bytes(msgspec.json.encode(body))
    with folders.served(tmp_path) as url:
        yield url


def test_types_of_a_server(tmp_path: Path, described: str) -> None:
    found = codegen(tmp_path, "--url", described + "/", "--name", "Shop")
    assert (found.returncode, found.stderr) == (0, "")
    assert "export interface Shop {" in found.stdout
    absent = codegen(tmp_path, "--url", f"{described}/nothing")
    assert absent.stderr.startswith(f"error: {described}/nothing/forge/openapi.json cannot be read: ")


def test_which_application(tmp_path: Path) -> None:
    found = codegen(tmp_path, "shop:app", "--url", "http://127.0.0.1:1")
    assert (found.returncode, found.stderr.splitlines()[0]) == (1, "error: which application?")
