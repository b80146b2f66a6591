"""Forge: the changes of a database, captured once and made usable."""
