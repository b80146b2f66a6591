"""Every example in a docstring is run, and true."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

PACKAGES = ("forge", "tools", "benchmarks", "tests.checkers", "tests.servers")


def modules() -> list[str]:
    found = list(PACKAGES)
    for package in PACKAGES:
        walked = pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
        found += [
            module.name for module in walked if not module.name.endswith(".__main__") and ".test_" not in module.name
        ]
    return found


@pytest.mark.parametrize("name", modules())
def test_examples(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] in ("forge", "tools", "benchmarks", "tests"):
            raise
        pytest.skip(f"{missing.name} is not installed")
    result = doctest.testmod(module)
    assert result.failed == 0
    assert bool(result.attempted) == bool(re.search(r"^ *>>> ", Path(str(module.__file__)).read_text("utf-8"), re.M))
