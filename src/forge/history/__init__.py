"""Queries about the past, answered from the log."""
