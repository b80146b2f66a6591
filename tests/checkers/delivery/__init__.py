"""The delivery checker: consumers on several nodes that are killed at chosen points or hang, on a server that crashes,
over a network that is cut or falls silent.

Writers change rows at random. Nodes work on consumers of several kinds and die by SIGKILL before a side effect, after
it and before the cursor is saved, and while it is saved; another life follows each death. They hang (SIGSTOP), and hear
nothing, for longer than their lease. At the end, all that the log says must have been received: nothing lost, the
changes of each row in their order, one twice only where a worker died or hung, and then with the same id, and in
`ctx.tx` each exactly once.

    python -m tests.checkers delivery --seed 7
"""
