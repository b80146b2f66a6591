"""What the application says while it writes: who and why (`current`, `context`), and messages of its own (`notify`)."""
