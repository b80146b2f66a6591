"""The actor and the reason, in a comment before a statement: the log has no other place for it.

Servers that log statements beside their rows (`binlog_annotate_row_events`, `binlog_rows_query_log_events`) keep the
comment. Only one at the very start counts, so no value inside a statement can imitate one.

>>> said(comment(Context(user_id="ada", trace_id="*/ t1")) + "UPDATE t SET n = 1").trace_id
'*/ t1'
>>> said("UPDATE t SET s = '/* forge:{} */'") is None
True
"""

import json
import re

from forge.change import Context

_FORM = re.compile(r"\s*/\*\s*forge:(\{.*?\})\s*\*/", re.S)
_KNOWN = ("user_id", "function_name", "trace_id")


def comment(context: Context) -> str:
    """Return a comment to put before a statement, so that its changes carry the actor and the reason.

    >>> comment(Context(user_id="ada", trace_id="*/ t1"))
    '/* forge:{"user_id": "ada", "trace_id": "*\\\\/ t1"} */ '
    """
    known = {name: value for name in _KNOWN if (value := getattr(context, name)) is not None}
    text = json.dumps({**context.more, **known}).replace("*/", "*\\/")
    return f"/* forge:{text} */ "


def said(statement: str) -> Context | None:
    """Return the context at the start of a statement; None without one, ValueError for an invalid one."""
    match = _FORM.match(statement)
    if match is None:
        return None
    found = json.loads(match[1])
    known = {name: found.pop(name, None) for name in _KNOWN}
    if not all(value is None or isinstance(value, str) for value in known.values()):
        raise ValueError("user_id, function_name and trace_id are texts")
    return Context(**known, more=found)
