"""From changes to fresh results: which live queries a change touches, when they run again, and what is pushed.

In come Changes and subscriptions, out go results and deltas. No HTTP and no sockets of clients here: see `forge.serve`.
"""
