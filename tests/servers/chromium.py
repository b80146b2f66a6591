"""Debian's Chromium, as tests, benchmarks and pictures start it: without a screen, and without a word to anybody."""

from typing import Final

PATH: Final = "/usr/bin/chromium"
ARGUMENTS: Final = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
