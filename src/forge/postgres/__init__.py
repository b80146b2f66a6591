"""Talk to PostgreSQL: connections, session settings, named queries, leases, advisory locks, names and texts."""
