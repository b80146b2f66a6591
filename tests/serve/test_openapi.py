"""The OpenAPI document: valid, whole, and with the arguments that the registry checks."""

import enum
import re
from datetime import datetime
from typing import Annotated, Any

import jsonschema_rs
import msgspec
import pytest
import schemathesis

from forge.react.registry import Registry
from forge.serve.openapi import document

Document = dict[str, Any]


class Status(enum.Enum):
    OPEN = "open"
    DONE = "done"


class Item(msgspec.Struct):
    sku: str
    count: Annotated[int, msgspec.Meta(ge=1)] = 1


class ErrorBody(msgspec.Struct):
    """The application has a type with the name of one of ours."""

    trouble: int


class Opaque:
    pass


async def open_orders(ctx: Any, customer_id: int, status: Status = Status.OPEN) -> list[Any]:
    """Orders of a customer that are not done.

    More about it.
    """
    raise NotImplementedError


async def everything(ctx: Any) -> list[Any]:
    raise NotImplementedError


async def place(ctx: Any, items: list[Item], at: datetime | None = None) -> int:
    raise NotImplementedError


async def complain(ctx: Any, body: ErrorBody) -> None:
    raise NotImplementedError


async def odd(ctx: Any, thing: Opaque) -> None:
    raise NotImplementedError


def made(*, security: bool = True) -> Document:
    registry = Registry()
    registry.query(open_orders)
    registry.query(everything)
    registry.mutation(place)
    registry.mutation(complain)
    return document(registry, title="Shop", version="3", security=security)


def resolved(found: Document, schema: Document) -> Document:
    """A schema with what it refers to, as one that stands alone."""
    return {**schema, "components": found["components"]}


def arguments(found: Document, path: str) -> Document:
    return resolved(found, found["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"])


def test_every_path_is_there() -> None:
    paths = made()["paths"]
    assert {(method, path) for path, methods in paths.items() for method in methods} == {
        ("post", "/forge/query/open_orders"),
        ("post", "/forge/query/everything"),
        ("get", "/forge/live/open_orders"),
        ("get", "/forge/live/everything"),
        ("post", "/forge/mutation/place"),
        ("post", "/forge/mutation/complain"),
        ("get", "/forge/session"),
        ("post", "/forge/session/{id}/subscribe"),
        ("post", "/forge/session/{id}/unsubscribe"),
        ("post", "/forge/session/{id}/auth"),
        ("get", "/forge/changes"),
        ("get", "/forge/history/{table}/{key}"),
        ("get", "/forge/audit"),
        ("get", "/versions/available"),
        ("get", "/versions/{project}/{resource}"),
        ("get", "/versions/{project}/{resource}/deletes"),
        ("get", "/versions/{project}/{resource}/keyChanges"),
        ("get", "/versions/{project}/{resource}/stream"),
        ("get", "/healthz"),
        ("get", "/readyz"),
        ("get", "/metrics"),
    }


@pytest.mark.parametrize("security", [True, False])
def test_schemathesis_reads_it_and_finds_no_error(security: bool) -> None:
    found = made(security=security)
    schema = schemathesis.openapi.from_dict(found)
    schema.validate()
    operations = list(schema.get_all_operations())
    assert [operation for operation in operations if not hasattr(operation, "ok")] == []
    assert len(operations) == sum(map(len, found["paths"].values()))


def test_it_is_json_and_every_reference_leads_somewhere() -> None:
    found = made()
    text = msgspec.json.encode(found).decode()
    references = set(re.findall(r'"\$ref":"#/components/schemas/([^"]*)"', text))
    assert references
    assert references <= set(found["components"]["schemas"])
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in found["components"]["schemas"])


def test_operation_ids_are_distinct() -> None:
    ids = [operation["operationId"] for methods in made()["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("given", "valid"),
    [
        ({"customer_id": 7}, True),
        ({"customer_id": 7, "status": "done"}, True),
        ({}, False),
        ({"customer_id": "7"}, False),
        ({"customer_id": 7, "status": "lost"}, False),
        ({"customer_id": 7, "unknown": 1}, False),
    ],
)
def test_the_document_accepts_the_arguments_that_the_registry_accepts(given: Any, valid: bool) -> None:
    found = made()
    schema = arguments(found, "/forge/query/open_orders")
    assert jsonschema_rs.Draft202012Validator(schema).is_valid(given) is valid
    live = found["paths"]["/forge/live/open_orders"]["get"]["parameters"][0]
    assert (live["name"], live["in"], live["required"]) == ("args", "query", True)
    streamed = resolved(found, live["content"]["application/json"]["schema"])
    assert jsonschema_rs.Draft202012Validator(streamed).is_valid(given) is valid


@pytest.mark.parametrize(
    ("given", "valid"),
    [
        ({"items": [{"sku": "a"}]}, True),
        ({"items": [{"sku": "a", "count": 0}]}, False),
        ({"items": [], "at": "2026-11-10T09:00:00Z"}, True),
        ({"items": [], "at": 3}, False),
    ],
)
def test_nested_arguments(given: Any, valid: bool) -> None:
    schema = arguments(made(), "/forge/mutation/place")
    assert jsonschema_rs.Draft202012Validator(schema).is_valid(given) is valid


def test_a_query_without_arguments_needs_no_body() -> None:
    paths = made()["paths"]
    assert paths["/forge/query/everything"]["post"]["requestBody"]["required"] is False
    assert paths["/forge/live/everything"]["get"]["parameters"][0]["required"] is False
    assert paths["/forge/query/open_orders"]["post"]["requestBody"]["required"] is True


def test_what_comes_back() -> None:
    found = made()
    query = found["paths"]["/forge/query/open_orders"]["post"]["responses"]
    mutation = found["paths"]["/forge/mutation/place"]["post"]["responses"]
    live = found["paths"]["/forge/live/open_orders"]["get"]["responses"]
    assert {"200", "400", "401", "404", "413", "429", "503"} <= set(query)
    assert set(mutation) == set(query)
    assert list(live["200"]["content"]) == ["text/event-stream"]

    def accepts(response: Document, value: Any) -> bool:
        schema = resolved(found, response["content"]["application/json"]["schema"])
        return jsonschema_rs.Draft202012Validator(schema).is_valid(value)

    assert accepts(query["200"], {"result": [1], "hash": "h", "snapshot": "1:2:"})
    assert not accepts(query["200"], {"result": [1]})
    assert accepts(mutation["200"], {"result": 1, "xid": None})
    assert accepts(mutation["200"], {"result": {"$int": "9007199254740993"}, "xid": "7"})
    assert not accepts(mutation["200"], {"result": None, "xid": None})
    assert accepts(mutation["200"], {"result": 1, "xid": "812"})
    failure = {"code": "bad_arguments", "message": "m", "fix": "f"}
    assert accepts(query["400"], {"error": failure})
    assert not accepts(query["429"], {"error": failure})
    assert accepts(query["429"], {"error": {**failure, "retry_after_secs": 5}})
    assert "Retry-After" in query["429"]["headers"]


def test_security_is_asked_for_where_there_is_some() -> None:
    secured, open_to_all = made(security=True), made(security=False)
    assert secured["security"] == [{"bearer": []}]
    assert secured["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    for path in ("/healthz", "/readyz", "/metrics"):
        assert secured["paths"][path]["get"]["security"] == []
    assert "security" not in secured["paths"]["/forge/session"]["get"]
    assert "security" not in open_to_all
    assert "securitySchemes" not in open_to_all["components"]
    assert "401" not in open_to_all["paths"]["/forge/query/everything"]["post"]["responses"]


def test_the_first_line_of_a_docstring_is_the_summary() -> None:
    paths = made()["paths"]
    assert paths["/forge/query/open_orders"]["post"]["summary"] == "Orders of a customer that are not done."
    assert paths["/forge/query/everything"]["post"]["summary"] == "The result of everything now."


def test_types_of_the_application_and_ours_may_have_one_name() -> None:
    found = made()
    schema = jsonschema_rs.Draft202012Validator(arguments(found, "/forge/mutation/complain"))
    assert schema.is_valid({"body": {"trouble": 1}})
    assert not schema.is_valid({"body": {"error": {"code": "c", "message": "m", "fix": "f"}}})


def test_names_that_are_no_words_have_paths_and_components_of_their_own() -> None:
    registry = Registry()
    for name in ("a b", "a_b", "a/b", "{id}"):
        registry.query(everything, name=name)
    registry.query(open_orders, name="a.b")
    found = document(registry, title="Shop", version="1", security=False)
    for path in ("a%20b", "a_b", "a%2Fb", "%7Bid%7D", "a.b"):
        assert f"/forge/query/{path}" in found["paths"]
    by_path = {path: arguments(found, f"/forge/query/{path}") for path in ("a_b", "a.b")}
    accepts = {path: jsonschema_rs.Draft202012Validator(schema).is_valid({}) for path, schema in by_path.items()}
    assert accepts == {"a_b": True, "a.b": False}
    schemathesis.openapi.from_dict(found).validate()


def test_an_argument_of_a_type_that_has_no_schema_is_named() -> None:
    registry = Registry()
    registry.query(odd)
    found = document(registry, title="Shop", version="1", security=False)
    (thing,) = found["components"]["schemas"]["odd.arguments"]["properties"].values()
    assert "Opaque" in thing["description"]


def test_an_application_without_functions() -> None:
    found = document(Registry(), title="Empty", version="1", security=False)
    assert "/healthz" in found["paths"]
    assert not any(path.startswith("/forge/query") for path in found["paths"])
