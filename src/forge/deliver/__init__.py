"""Changes and messages to where they are wanted: consumers, webhooks, queues, and the outbox. At least once, always."""
