"""The model test of change versions: writers, clients that poll windows all the time, and strategies that change.

Writers change a random graph of documents, by the API and by SQL of their own, in transactions that wait before they
commit or are rolled back, and give and take access. Clients mirror resources by nothing but windows of versions, half
of them what one subject sees. After every window a client must have all that is settled, as it is; nothing may ever
appear at or below a newest that was told; journals and tokens must agree; and in the end every mirror is the source.

    python -m tests.checkers versions --seed 7
"""
