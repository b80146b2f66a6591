"""The reference of sources says what the code says."""

from pathlib import Path
from typing import Any

import pytest

from forge.capture import Capabilities, Source, open_source
from forge.capture.sqlite.hook import Hook
from forge.doctor.sources import LOST

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sources.md"
SOURCES: dict[str, Source] = {
    "log": open_source("postgresql://db/shop"),
    "wal": open_source("postgresql://db/shop?feed=wal"),
    "mysql": open_source("mysql://db/shop"),
    "sqlite": open_source("sqlite:///shop.db"),
    "hook": Hook("sqlite:///shop.db"),
    "mongo": open_source("mongodb://db/shop"),
}


def table(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading."""
    lines = PAGE.read_text("utf-8").partition(f"## {heading}\n")[2].splitlines()
    found: list[list[str]] = []
    for line in lines:
        if line.startswith("|"):
            found.append([cell.strip() for cell in line.strip("|").split("|")])
        elif found:
            break
    return [found[0], *found[2:]]


def said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else ", ".join(value) or "none"


@pytest.mark.contract("W12")
def test_the_table_of_capabilities_is_true() -> None:
    heads, *lines = table("What each can do")
    assert [head.strip("`") for head in heads[1:]] == list(SOURCES)
    wanted = {
        name: [said(getattr(source.capabilities, name)) for source in SOURCES.values()]
        for name in Capabilities.__struct_fields__
        if name != "retention"
    }
    assert {line[0]: line[1:] for line in lines} == wanted


@pytest.mark.contract("W12")
def test_every_source_says_what_its_retention_loses() -> None:
    _, *lines = table("What a cursor is good for")
    kinds = [line[0].strip("`") for line in lines]
    assert kinds == list(SOURCES) == list(LOST)
    assert all(source.capabilities.retention for source in SOURCES.values())
    assert [source.kind for source in SOURCES.values()] == kinds
