"""Change versions: "what changed since X?" for documents whose representation depends on other documents.

A document's version is derived when it is asked for, from its own stamps and those of what it refers to; a write stamps
what it changed and nothing else.
"""
