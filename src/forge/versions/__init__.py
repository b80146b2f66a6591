"""Change versions: "what changed since X?" for documents whose representation depends on other documents.

A document's version is derived when it is asked for, from its own stamps and those of what it refers to; a write stamps
what it changed and nothing else.

    install(connection)
    students, plans = Resource("ed-fi", "students"), Resource("ed-fi", "graduationPlans")
    declare(connection, students), declare(connection, plans)
    ada = put(connection, students, {"id": 7}, {"name": "Ada"}).document
    put(connection, plans, {"year": 2026}, {"credits": 24}, references={"student": ada})
    since = newest(connection)
    change_identity(connection, ada, {"id": 8})
    changes(connection, plans, since + 1).items         # the plan: it shows another student

============  ==========================================================================================
documents     putting, deleting and referring to documents; `identity` changes their keys
resources     the kinds of documents, each declared once
access        who sees which document, where a resource is by access
triggers      the same for applications that write by SQL of their own
stamps        the newest version, below which nothing is still uncommitted
reading       what changed, was deleted, or has another key, in a window of versions
strategies    what is kept on writing so that reading costs less; the answers are the same
============  ==========================================================================================
"""
