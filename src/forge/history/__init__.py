"""The log, asked what was."""
