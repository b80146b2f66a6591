"""Demo: a small shop with traffic, to watch changes. `shop` creates it, `traffic` writes to it, `show` watches."""

from forge.demo.show import Demo, DemoOptions
from forge.demo.summary import Summary

__all__ = ["Demo", "DemoOptions", "Summary"]
