"""The OpenAPI 3.1 document of an application: one path per query and mutation, with its arguments.

Results are described by the function's return annotation, which is not checked.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from forge.react.registry import Mutation, Query, Registry
from forge.serve.openapi_bodies import (
    BODIES,
    AuditBody,
    AuthBody,
    AuthenticatedBody,
    AvailableBody,
    ErrorBody,
    ExpiredBody,
    HealthBody,
    HistoryBody,
    MutationBody,
    QueryBody,
    SubscribeBody,
    SubscribedBody,
    TooManyBody,
    UnsubscribeBody,
    UnsubscribedBody,
    VersionsBody,
)
from forge.serve.returns import Returns

Object = dict[str, Any]

_REFERENCE: Final = "#/components/schemas/{name}"


_ERRORS: Final = {
    400: "The arguments are not those that it takes.",
    401: "The token is missing or not acceptable.",
    403: "The caller may not see any of it, or comes from an origin or for a host that is not allowed.",
    404: "There is no such name or session.",
    410: "The cursor cannot be gone on from, or the past is not in the log any more.",
    413: "The request or the result is too large.",
    422: "It was refused or failed; nothing was written.",
    500: "The function failed; nothing was written.",
    429: "A limit is reached; `retry_after_secs` says when to try again.",
    503: "The database does not answer now.",
}


def document(registry: Registry, *, title: str, version: str, security: bool) -> Object:
    """Return the document; with `security`, everything under /forge/ requires a bearer token."""
    functions: list[Query | Mutation] = [*registry.queries.values(), *registry.mutations.values()]
    names = _component_names(functions)
    structs = [_renamed(function.arguments, names[function.name]) for function in functions]
    schemas, components = msgspec.json.schema_components(
        (*BODIES, *structs), schema_hook=_opaque, ref_template=_REFERENCE
    )
    paths = _Paths(security, dict(zip(BODIES, schemas, strict=False)), components)
    arguments = dict(zip((function.name for function in functions), schemas[len(BODIES) :], strict=True))
    for query in registry.queries.values():
        paths.query(query, arguments[query.name])
    for mutation in registry.mutations.values():
        paths.mutation(mutation, arguments[mutation.name])
    paths.fixed()
    components.update(paths.returns.components)
    found: Object = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths.paths,
        "components": {"schemas": components},
    }
    if security:
        found["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
        }
        found["security"] = [{"bearer": []}]
    return found


class _Paths:
    """The paths added so far."""

    def __init__(
        self, security: bool, bodies: Mapping[type[msgspec.Struct], Object], components: Mapping[str, Object]
    ) -> None:
        self.paths: dict[str, Object] = {}
        self.returns = Returns()
        self._security = security
        self._bodies = bodies
        self._components = components

    def query(self, query: Query, arguments: Object) -> None:
        key: Object = {"x-forge-key": list(query.key)} if query.key else {}
        self._add(
            "post",
            f"/forge/query/{quote(query.name, safe='')}",
            f"query:{query.name}",
            _summary(query, f"The result of {query.name} now."),
            {"200": self._result(QueryBody, query), **self._errors(400, 401, 403, 404, 413, 422, 429, 500, 503)},
            parameters=[_AS_OF, _AFTER],
            requestBody=_request(arguments, required=_needs_arguments(query)),
            **key,
        )
        self._add(
            "get",
            f"/forge/live/{quote(query.name, safe='')}",
            f"live:{query.name}",
            f"The result of {query.name}, and again whenever it changes.",
            {**_stream("`snapshot`, then `update` or `delta`."), **self._errors(400, 401, 404, 413, 429, 503)},
            parameters=[
                {
                    "name": "args",
                    "in": "query",
                    "required": _needs_arguments(query),
                    "content": {"application/json": {"schema": arguments}},
                },
                _MODE,
                _LAST_EVENT,
            ],
        )

    def mutation(self, mutation: Mutation, arguments: Object) -> None:
        self._add(
            "post",
            f"/forge/mutation/{quote(mutation.name, safe='')}",
            f"mutation:{mutation.name}",
            _summary(mutation, f"Run {mutation.name} in one transaction."),
            {
                "200": {**self._result(MutationBody, mutation), "headers": {"Forge-Repeated": _REPEATED}},
                **self._errors(400, 401, 403, 404, 413, 422, 429, 500, 503),
            },
            parameters=[_ONCE],
            requestBody=_request(arguments, required=_needs_arguments(mutation)),
        )

    def _result(self, body: type[msgspec.Struct], function: Query | Mutation) -> Object:
        """Return the response, with the function's return type if it is known."""
        schema = self._bodies[body]
        if result := self.returns.of(function.function):
            whole = self._components[schema["$ref"].rpartition("/")[2]]
            schema = {**whole, "properties": {**whole["properties"], "result": result}}
        return _answer(_first_line(body.__doc__ or ""), schema)

    def fixed(self) -> None:
        """Add the paths that every application has."""
        self._add(
            "get",
            "/forge/session",
            "session",
            "A stream for any number of subscriptions; its first event has the session's id.",
            {**_stream("`session`, then the events of its subscriptions."), **self._errors(401, 429, 503)},
        )
        self._of_session("subscribe", "Subscribe to a query.", SubscribeBody, SubscribedBody)
        self._of_session("unsubscribe", "End a subscription.", UnsubscribeBody, UnsubscribedBody)
        self._of_session("auth", "Go on with a newer token.", AuthBody, AuthenticatedBody)
        self._add(
            "get",
            "/forge/changes",
            "changes",
            "Every change, as it is committed.",
            {**_stream("A `change` for each change."), **self._errors(400, 401, 403, 410, 429, 503)},
            parameters=[
                _chosen("table", "Only changes of these tables: orders, sales.orders.", many=True),
                _chosen("op", "Only these operations.", many=True),
                _chosen("from", "start, now, or a cursor."),
                _chosen("backpressure", "drop (the oldest that wait) or pause (and catch up from the log)."),
                _LAST_EVENT,
            ],
        )
        self._past()
        self._versions()
        ready = {**self._answers(HealthBody), "503": _answer("It cannot serve now.", self._bodies[HealthBody])}
        text = {"200": {"description": "In Prometheus's text format.", "content": {"text/plain": {}}}}
        self._add("get", "/healthz", "healthz", "The process answers.", self._answers(HealthBody), open=True)
        self._add("get", "/readyz", "readyz", "The node can serve.", ready, open=True)
        self._add("get", "/metrics", "metrics", "What is counted and measured.", text, open=True)

    def _past(self) -> None:
        """Add history and audit, for tokens with the permission."""
        page = [
            _chosen("limit", "How many; 50 unless given."),
            _chosen("before", "`next` of the page before."),
        ]
        self._add(
            "get",
            "/forge/history/{table}/{key}",
            "history",
            "Every change of a row, newest first; or the row as it was.",
            self._answers(HistoryBody, 400, 401, 403, 404, 410, 413, 422, 503),
            parameters=[
                _in_path("table", "orders, sales.orders"),
                _in_path("key", 'The row: 4711, a=1,b=2 or {"a": 1, "b": 2}.'),
                _chosen("at", "The row as it was then: an instant with its zone, 1h ago."),
                *page,
            ],
        )
        self._add(
            "get",
            "/forge/audit",
            "audit",
            "Who changed what, newest transactions first; or how often.",
            self._answers(AuditBody, 400, 401, 403, 404, 413, 422, 503),
            parameters=[
                _chosen("user", "Only what this user changed."),
                _chosen("table", "Only this table."),
                _chosen("op", "Only these operations.", many=True),
                _chosen("trace", "Only what this request changed."),
                _chosen("since", "From then on: an instant with its zone, 1d."),
                _chosen("until", "Before then."),
                _chosen("by", "Count them by table, user, op, function, trace, hour, day; several with commas."),
                *page,
            ],
        )

    def _versions(self) -> None:
        """Add the paths for changes since a version."""
        self._add(
            "get",
            "/versions/available",
            "versions",
            "Which versions can be asked for; nothing up to the newest is still to come.",
            self._answers(AvailableBody, 401, 403, 404, 413, 503),
            parameters=[_chosen("resource", "Also how often it was changed who sees this: ed-fi/students.")],
        )
        expired = _answer("The window begins before the oldest version that is known.", self._bodies[ExpiredBody])
        for path, id, summary in (
            ("", "changes", "Documents that changed in a window, as they are now; all, without a beginning."),
            ("/deletes", "deletes", "What was deleted in a window."),
            ("/keyChanges", "keyChanges", "Which documents got another identity in a window."),
            ("/stream", "stream", "All three in the order of versions."),
        ):
            self._add(
                "get",
                f"/versions/{{project}}/{{resource}}{path}",
                f"versions:{id}",
                summary,
                {**self._answers(VersionsBody, 400, 401, 403, 404, 413, 503), "410": expired},
                parameters=[
                    _in_path("project", "ed-fi"),
                    _in_path("resource", "students"),
                    _chosen("resourceVersion", "The version of the resource's own definition; 1 unless given."),
                    _number("minChangeVersion", "The window begins here; one above the newest at the most."),
                    _number("maxChangeVersion", "The window ends here; at the newest unless given."),
                    _number("limit", "How many items; 100 unless given.", 1, 1000),
                    _chosen("pageToken", "`next` of the page before."),
                ],
            )

    def _of_session(self, name: str, summary: str, asked: type[msgspec.Struct], answer: type[msgspec.Struct]) -> None:
        self._add(
            "post",
            f"/forge/session/{{id}}/{name}",
            f"session:{name}",
            summary,
            self._answers(answer, 400, 401, 403, 404, 413, 429, 503),
            parameters=[{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
            requestBody=_request(self._bodies[asked], required=True),
        )

    def _add(
        self, method: str, path: str, id: str, summary: str, responses: Object, *, open: bool = False, **parts: Any
    ) -> None:
        access: Object = {"security": []} if open and self._security else {}
        operation = {"operationId": id, "summary": summary, **parts, "responses": responses, **access}
        self.paths.setdefault(path, {})[method] = operation

    def _answers(self, body: type[msgspec.Struct], *errors: int) -> Object:
        return {"200": _answer(_first_line(body.__doc__ or ""), self._bodies[body]), **self._errors(*errors)}

    def _errors(self, *codes: int) -> Object:
        return {str(code): self._error(code) for code in codes if code != 401 or self._security}

    def _error(self, code: int) -> Object:
        if code != 429:
            return _answer(_ERRORS[code], self._bodies[ErrorBody])
        retry = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}}
        return {**_answer(_ERRORS[code], self._bodies[TooManyBody]), "headers": retry}


def _in_path(name: str, description: str) -> Object:
    return {"name": name, "in": "path", "required": True, "description": description, "schema": {"type": "string"}}


def _chosen(name: str, description: str, *, many: bool = False) -> Object:
    schema: Object = {"type": "array", "items": {"type": "string"}} if many else {"type": "string"}
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


def _number(name: str, description: str, least: int = 0, most: int = 2**63 - 1) -> Object:
    schema = {"type": "integer", "minimum": least, "maximum": most}
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


_AS_OF: Final = {
    "name": "as_of",
    "in": "query",
    "required": False,
    "description": "Answer as of this instant of the past, or as of now.",
    "schema": {"anyOf": [{"type": "string", "format": "date-time"}, {"const": "now"}]},
}
_AFTER: Final = {
    "name": "Forge-After",
    "in": "header",
    "required": False,
    "description": "Transactions that the result must show: the `xid` of a mutation's answer, or several with commas.",
    "schema": {"type": "string", "pattern": "^~?[0-9]{1,20}(,~?[0-9]{1,20}){0,63}$"},
}
_ONCE: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A name for this call: sent again within 7 days, it is answered again and does not run again.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
}
_REPEATED: Final = {"description": "It is the answer of an earlier call with the key.", "schema": {"const": "true"}}
_MODE: Final = {
    "name": "mode",
    "in": "query",
    "required": False,
    "schema": {"enum": ["full", "delta"], "default": "full"},
}
_LAST_EVENT: Final = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "The id of the last event that was received.",
    "schema": {"type": "string"},
}


def _answer(description: str, schema: Object) -> Object:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _stream(description: str) -> Object:
    return {"200": {"description": description, "content": {"text/event-stream": {"schema": {"type": "string"}}}}}


def _request(schema: Object, *, required: bool) -> Object:
    return {"required": required, "content": {"application/json": {"schema": schema}}}


def _needs_arguments(function: Query | Mutation) -> bool:
    return any(field.required for field in msgspec.structs.fields(function.arguments))


def _summary(function: Query | Mutation, otherwise: str) -> str:
    return _first_line(function.function.__doc__ or "") or otherwise


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].strip()


def _component_names(functions: list[Query | Mutation]) -> dict[str, str]:
    """Return a component name for the arguments of each function: its name, in the characters allowed there."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for function in functions:
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", function.name)
        name = f"{plain}.arguments"
        while name in taken:
            name = f"{plain}.arguments.{len(taken)}"
        taken.add(name)
        found[function.name] = name
    return found


def _renamed(struct: type[msgspec.Struct], name: str) -> type[msgspec.Struct]:
    return msgspec.defstruct(name, [], bases=(struct,), kw_only=True)


def _opaque(kind: type) -> Object:
    return {"description": f"As {kind.__name__} takes it."}
