"""The durable log in PostgreSQL: installing it, reading it, keeping it.

The SQL is in `sql/`: numbered migrations make tables, and functions are written again at every install.
"""
