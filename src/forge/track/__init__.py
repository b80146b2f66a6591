"""What the application says while it writes: who and why (`context`), and messages of its own (`notify`)."""
