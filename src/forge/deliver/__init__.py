"""Deliver changes and messages, at least once: consumers, webhooks, queues and the outbox."""
