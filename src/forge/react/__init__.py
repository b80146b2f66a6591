"""Match changes to live queries, run the affected queries again and push their results.

Input: Changes and subscriptions. Output: results and deltas. HTTP and client sockets are in `forge.serve`.
"""
