"""Servers and programs that only the tests and benchmarks of this repository start."""
