"""Figures in the reference documents are those of the code."""

import re
from pathlib import Path

from forge.config import TABLES
from forge.serve.ws import MOST_CALLS
from tools import settings

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_the_calls_of_a_websocket_that_run_at_once() -> None:
    [stated] = re.findall(r"At most (\d+) calls run at once", (REFERENCE / "events.md").read_text())
    assert int(stated) == MOST_CALLS


def test_the_tables_of_settings() -> None:
    text = settings.DOCUMENT.read_text()
    assert settings.written(text) == text, "python -m tools.settings writes them"
    for table in ("top", *TABLES):
        assert f"<!-- settings {table} -->" in text
