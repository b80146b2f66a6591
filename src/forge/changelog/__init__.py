"""The durable log in PostgreSQL: install, read and maintain it.

The SQL is in `sql/`: numbered migrations create tables, and every install replaces all functions.
"""
