"""Change versions over HTTP: windows in pages, to those who may see them; a copy kept from a server."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import jsonschema_rs
import jwt
import pytest

from forge.app import Forge
from forge.changelog.install import install as install_log
from forge.embedded import PostgresServer
from forge.errors import (
    Failed,
    ForgeError,
    Refused,
    TokenInvalid,
    Unauthorized,
    UnknownResource,
    Unreachable,
    WindowExpired,
    WindowInvalid,
)
from forge.postgres.connection import Connection, connect
from forge.react.group import Settings
from forge.serve.auth import AuthSettings
from forge.serve.node import Options
from forge.versions import reading
from forge.versions.access import grant
from forge.versions.documents import delete, find, put
from forge.versions.identity import change_identity
from forge.versions.nouns import Event, Page, Resource, decode
from forge.versions.resources import declare
from forge.versions.sync import SqliteMirror, Synced, sync
from forge.versions.sync.http import HttpSource
from tests.serve.serving import serving
from tests.versions.school import PLANS, STUDENTS, copy_in_sqlite, school_database, source_of

SECRET = "s" * 32
AUTH = AuthSettings(algorithms=("HS256",), secret=SECRET)
ALL = ("/versions/ed-fi/students", *(f"/versions/ed-fi/students/{end}" for end in ("deletes", "keyChanges", "stream")))


def coded(**claims: Any) -> str:
    return jwt.encode({"sub": "ada", "exp": time.time() + 3600, **claims}, SECRET, algorithm="HS256")


def token(**claims: Any) -> dict[str, str]:
    return {"authorization": f"Bearer {coded(**claims)}"}


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    with school_database(server) as found:
        with connect(found) as connection:
            install_log(connection)
        yield found


@pytest.fixture
def school(url: str) -> Iterator[Connection]:
    with connect(url) as connection:
        yield connection


@pytest.mark.contract("V4", "V5", "V6")
async def test_what_changed(url: str, school: Connection) -> None:
    async with serving(Forge(url)) as served:

        async def get(path: str) -> Any:
            answer = await served.client.get(path)
            assert answer.status_code == 200, answer.text
            return decode(answer.content)

        before = await get("/versions/available")
        assert (before["oldest"], before["newest"]) == (1, 10)
        student, plan = find(school, STUDENTS, {"number": 1}), find(school, PLANS, {"plan": "P2"})
        assert student is not None
        assert plan is not None
        change_identity(school, student, {"number": 1001})
        delete(school, plan)
        now = await get("/versions/available")
        assert now == {**before, "newest": 12}
        window = f"minChangeVersion={before['newest'] + 1}&maxChangeVersion={now['newest']}"

        changed = await get(f"/versions/ed-fi/graduationPlans?{window}")
        (item,) = changed["items"]
        assert changed["next"] is None
        assert (item["type"], item["changeVersion"], item["identity"]) == ("upsert", 11, {"plan": "P1"})
        assert item["references"] == {
            "student": {"id": student.id, "resource": "ed-fi/students", "identity": {"number": 1001}}
        }
        gone = (await get(f"/versions/ed-fi/graduationPlans/deletes?{window}"))["items"]
        assert gone == [{"type": "delete", "changeVersion": 12, "id": plan.id, "identity": {"plan": "P2"}}]
        keys = (await get(f"/versions/ed-fi/students/keyChanges?{window}"))["items"]
        old, new = {"number": 1}, {"number": 1001}
        assert keys == [
            {"type": "keyChange", "changeVersion": 11, "id": student.id, "oldIdentity": old, "newIdentity": new}
        ]
        stream = (await get(f"/versions/ed-fi/students/stream?{window}"))["items"]
        assert [(item["type"], item["changeVersion"]) for item in stream] == [("keyChange", 11), ("upsert", 11)]
        assert (await get("/versions/ed-fi/students?minChangeVersion=13"))["items"] == []

        found: list[Any] = []
        after: str | None = ""
        while after is not None:
            page = await get(f"/versions/ed-fi/students?limit=2{after and '&pageToken=' + after}")
            found += page["items"]
            after = page["next"]
        assert [item["id"] for item in found] == sorted(source_of(school, STUDENTS))
        text = (await served.client.get("/versions/ed-fi/students?limit=1")).text
        assert '"average":1.10' in text  # exact, whatever JSON readers make of it
        assert str(2**60) in text
        document = (await served.client.get("/forge/openapi.json")).json()
        assert len([path for path in document["paths"] if path.startswith("/versions/")]) == 5


@pytest.mark.contract("V7")
async def test_what_cannot_be_asked(url: str, school: Connection) -> None:
    async with serving(Forge(url)) as served:
        page = (await served.client.get("/versions/ed-fi/students?minChangeVersion=1&limit=1")).json()
        good = page["next"]
        forged = good[:-1] + ("A" if good[-1] != "A" else "B")
        school.execute("UPDATE forge_versions.setting SET oldest = 5")
        for query, code, kind in (
            ("minChangeVersion=9&maxChangeVersion=6", 400, "window_invalid"),
            ("minChangeVersion=-1", 400, "bad_arguments"),
            ("minChangeVersion=x", 400, "bad_arguments"),
            ("minChangeVersion=%D9%A1", 400, "bad_arguments"),
            ("minChangeVersion=9223372036854775808", 400, "bad_arguments"),
            ("minChangeVersion=12", 400, "window_invalid"),
            ("maxChangeVersion=11", 400, "window_invalid"),
            ("limit=0", 400, "bad_arguments"),
            ("limit=1001", 400, "bad_arguments"),
            ("pageToken=x", 400, "token_invalid"),
            (f"pageToken={forged}", 400, "token_invalid"),
            ("minChangeVersion=4", 410, "window_expired"),
            ("minChangeVersion=0", 410, "window_expired"),
            (f"pageToken={good}", 410, "window_expired"),
            ("resourceVersion=2", 404, "unknown_resource"),
            ("resourceVersion=%00", 404, "unknown_resource"),
            ("limit=1.5", 400, "bad_arguments"),
            ("limit=1180591620717411303424", 400, "bad_arguments"),
            ("pageToken=%00", 400, "token_invalid"),
            ("pageToken=%ED%A0%80", 400, "token_invalid"),
        ):
            answer = await served.client.get(f"/versions/ed-fi/students?{query}")
            told = answer.json()
            assert (query, answer.status_code, told["error"]["code"]) == (query, code, kind)
            assert told["error"]["fix"]
            assert told.get("oldest") == (5 if code == 410 else None)
        for path in ("/versions/ed-fi/teachers", "/versions/none/students", "/versions/ed-fi/students/x", "/versions"):
            assert (await served.client.get(path)).status_code == 404
        foreign = await served.client.get(f"/versions/ed-fi/graduationPlans?pageToken={good}")
        assert foreign.json()["error"]["code"] == "token_invalid"
        assert (await served.client.post("/versions/ed-fi/students")).status_code == 405


async def test_a_database_without_versions(database: str) -> None:
    async with serving(Forge(database)) as served:
        for path in ("/versions/available", *ALL):
            answer = await served.client.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "versions_missing")
            assert answer.json()["error"]["fix"] == "forge versions init"


async def test_each_resource_has_its_permission(url: str, school: Connection) -> None:
    async with serving(Forge(url, options=Options(auth=AUTH))) as served:

        async def code(path: str, **claims: Any) -> int:
            return (await served.client.get(path, headers=token(**claims))).status_code

        for path in ("/versions/available", *ALL):
            assert (await served.client.get(path)).status_code == 401
            for scope in ("", "openid", "forge:version", "forge:versions2", "forge:history"):
                assert await code(path, scope=scope) == 403
            assert await code(path, scope="openid forge:versions:ed-fi/students") == 200
        assert await code(ALL[0], scope="openid forge:versions") == 200
        assert await code(ALL[0], permissions=["forge:versions:ed-fi"]) == 200
        for path in ALL:
            assert await code(path, scope="forge:versions:ed-fi/graduationPlans forge:versions:ed") == 403
        refused = await served.client.get(ALL[0], headers=token())
        assert "forge:versions:ed-fi/students" in refused.json()["error"]["fix"]
    async with serving(Forge(url, options=Options(versions=None))) as served:
        for path in ("/versions/available", *ALL):
            assert (await served.client.get(path, headers=token(scope="forge:versions"))).status_code == 403


async def test_access_is_the_tokens_subjects(url: str, school: Connection) -> None:
    declare(school, PLANS, by_access=True)
    path = "/versions/ed-fi/graduationPlans"
    first, second = find(school, PLANS, {"plan": "P1"}), find(school, PLANS, {"plan": "P2"})
    assert first is not None
    assert second is not None
    async with serving(Forge(url, options=Options(auth=AUTH))) as served:

        async def seen(query: str = "", **claims: Any) -> list[tuple[int, str]]:
            headers = token(scope="forge:versions", **claims)
            answer = await served.client.get(f"{path}/stream?{query}", headers=headers)
            assert answer.status_code == 200, answer.text
            return [(item["id"], item["type"]) for item in answer.json()["items"]]

        assert await seen() == []
        newest = (await served.client.get("/versions/available", headers=token(scope="forge:versions"))).json()[
            "newest"
        ]
        since = f"minChangeVersion={newest + 1}"
        grant(school, first, "ada")
        grant(school, second, "acme/ada")
        assert await seen(since) == await seen() == [(first.id, "upsert")]  # older than the window, and yet in it
        assert await seen(since, tenant="acme") == [(second.id, "upsert")]
        assert await seen(since, sub="acme/ada") == []
        assert await seen(since, sub="bob") == []
        delete(school, first)
        assert await seen(since) == [(first.id, "delete")]
        assert await seen(since, sub="bob") == []
        pages = await served.client.get(f"{path}?limit=1", headers=token(scope="forge:versions", tenant="acme"))
        assert pages.json()["next"] is None
    async with serving(Forge(url)) as served:  # nobody has a name here
        answer = await served.client.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


async def test_a_resource_that_is_closed_while_it_is_read(
    url: str, school: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks as nobody is not shown all of it as somebody without a subject would be."""
    read = reading.standing

    def switched(connection: Connection, resource: Resource) -> Any:
        found = read(connection, resource)
        if not found.by_access:
            declare(connection, resource, by_access=True)
        return found

    monkeypatch.setattr(reading, "standing", switched)
    async with serving(Forge(url)) as served:
        answer = await served.client.get("/versions/ed-fi/graduationPlans")
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


async def test_a_copy_of_a_resource_that_is_closed_or_opened_is_begun_anew(
    url: str, school: Connection, tmp_path: Path
) -> None:
    path = tmp_path / "copy.db"
    found = find(school, PLANS, {"plan": "P1"})
    assert found is not None
    grant(school, found, "ada")
    async with serving(Forge(url, options=Options(auth=AUTH))) as served:

        def keep() -> Synced:
            source = HttpSource(served.url, PLANS, token=coded(scope="forge:versions:ed-fi/graduationPlans"))
            with closing(source), closing(SqliteMirror(path, PLANS)) as mirror:
                return sync(source, mirror)

        assert (await asyncio.to_thread(keep)).upserts == 5
        for by_access, subject in ((True, "ada"), (False, None)):
            declare(school, PLANS, by_access=by_access)
            assert "who may see the resource" in ((await asyncio.to_thread(keep)).again or "")
            assert copy_in_sqlite(path, PLANS) == source_of(school, PLANS, subject)
            assert (await asyncio.to_thread(keep)).again is None
        headers = token(scope="forge:versions:ed-fi/graduationPlans")
        told = await served.client.get("/versions/available?resource=ed-fi/graduationPlans", headers=headers)
        assert told.json()["epoch"] == 2
        for resource, code in (("ed-fi/students", 403), ("ed-fi", 404), ("ed-fi/graduationPlans/9", 404)):
            told = await served.client.get(f"/versions/available?resource={resource}", headers=headers)
            assert told.status_code == code


async def test_a_page_token_is_of_its_subject(url: str, school: Connection) -> None:
    declare(school, PLANS, by_access=True)
    for plan in ("P1", "P2", "P3"):
        found = find(school, PLANS, {"plan": plan})
        assert found is not None
        grant(school, found, "ada")
        grant(school, found, "bob")
    async with serving(Forge(url, options=Options(auth=AUTH))) as served:
        path = "/versions/ed-fi/graduationPlans?limit=1"
        first = await served.client.get(path, headers=token(scope="forge:versions"))
        again = f"{path}&pageToken={first.json()['next']}"
        assert (await served.client.get(again, headers=token(scope="forge:versions"))).status_code == 200
        other = await served.client.get(again, headers=token(scope="forge:versions", sub="bob"))
        assert (other.status_code, other.json()["error"]["code"]) == (400, "token_invalid")


async def test_a_copy_from_a_server_equals_its_source(url: str, school: Connection, tmp_path: Path) -> None:
    path = tmp_path / "copy.db"
    async with serving(Forge(url, options=Options(auth=AUTH))) as served:

        def keep() -> Synced:
            source = HttpSource(served.url, PLANS, token=coded(scope="forge:versions:ed-fi/graduationPlans"))
            with closing(source), closing(SqliteMirror(path, PLANS)) as mirror:
                return sync(source, mirror, limit=2)

        assert (await asyncio.to_thread(keep)).upserts == 5
        assert copy_in_sqlite(path, PLANS) == source_of(school, PLANS)
        student, plan = find(school, STUDENTS, {"number": 1}), find(school, PLANS, {"plan": "P2"})
        assert student is not None
        assert plan is not None
        change_identity(school, student, {"number": 1001})
        change_identity(school, plan, {"plan": "P2b"})
        put(school, PLANS, {"plan": "P9"}, {"credits": 9})
        delete(school, plan)
        done = await asyncio.to_thread(keep)
        assert copy_in_sqlite(path, PLANS) == source_of(school, PLANS)
        assert (done.again, done.upserts, done.deletions) == (None, 2, 1)
        put(school, PLANS, {"plan": "P9"}, {"credits": 10})
        school.execute("UPDATE forge_versions.setting SET oldest = 100")
        put(school, PLANS, {"plan": "P9"}, {"credits": 11})
        done = await asyncio.to_thread(keep)
        assert "oldest" in (done.again or "")
        assert copy_in_sqlite(path, PLANS) == source_of(school, PLANS)


async def test_a_page_ends_before_it_is_too_large(url: str, school: Connection, tmp_path: Path) -> None:
    """By bytes: an é is two of them. What is too large alone is a page of its own."""
    for plan, length in (("P1", 500), ("P2", 500), ("P3", 2000), ("P4", 10)):
        put(school, PLANS, {"plan": plan}, {"text": "é" * length})
    app = Forge(url, settings=Settings(max_result_bytes=3000))
    async with serving(app) as served:
        sizes, items = [], []
        query: dict[str, str] = {"limit": "1000"}
        while True:
            answer = await served.client.get("/versions/ed-fi/graduationPlans", params=query)
            assert answer.status_code == 200
            sizes.append(len(answer.content))
            items += [item["identity"]["plan"] for item in answer.json()["items"]]
            if (query := {"pageToken": answer.json()["next"]})["pageToken"] is None:
                break
        assert items == ["P1", "P2", "P3", "P4", "P5"]
        assert [size > 3000 for size in sizes] == [False, True, False]


async def test_a_page_that_is_too_large_all_the_same_is_asked_for_in_smaller_ones(
    url: str, school: Connection, tmp_path: Path
) -> None:
    """Resources are told by name, and this one's is long."""
    long = Resource("ed-fi", "x" * 2000)
    declare(school, long)
    put(school, long, {"n": 1}, {})
    for plan in ("P1", "P2", "P3"):
        put(school, PLANS, {"plan": plan}, {}, {"long": (long, {"n": 1})})
    app = Forge(url, settings=Settings(max_result_bytes=3000))
    async with serving(app) as served:
        answer = await served.client.get("/versions/ed-fi/graduationPlans")
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
        answer = await served.client.get("/versions/ed-fi/graduationPlans?limit=1")
        assert answer.status_code == 200

        def keep() -> Synced:
            with (
                closing(HttpSource(served.url, PLANS)) as source,
                closing(SqliteMirror(tmp_path / "copy.db", PLANS)) as mirror,
            ):
                return sync(source, mirror)

        await asyncio.to_thread(keep)
        assert copy_in_sqlite(tmp_path / "copy.db", PLANS) == source_of(school, PLANS)


@pytest.mark.contract("V7")
async def test_answers_are_as_the_document_says(url: str, school: Connection) -> None:
    school.execute("UPDATE forge_versions.setting SET oldest = 3")
    async with serving(Forge(url)) as served:
        document = (await served.client.get("/forge/openapi.json")).json()

        async def code(path: str, query: str) -> int:
            answer = await served.client.get(path.format(project="ed-fi", resource="students") + query)
            told = document["paths"][path]["get"]["responses"][str(answer.status_code)]
            schema = {**told["content"]["application/json"]["schema"], "components": document["components"]}
            jsonschema_rs.validate(schema, answer.json())
            return answer.status_code

        assert await code("/versions/available", "") == 200
        assert await code("/versions/available", "?resource=ed-fi/students") == 200
        for end in ("", "/deletes", "/keyChanges", "/stream"):
            path = "/versions/{project}/{resource}" + end
            queries = ("?minChangeVersion=3&limit=2", "?minChangeVersion=1", "?pageToken=x")
            assert [await code(path, query) for query in queries] == [200, 410, 400]


async def test_a_servers_errors_are_typed(url: str, school: Connection) -> None:
    async with serving(Forge(url, options=Options(auth=AUTH))) as served:

        def ask(resource: Resource = PLANS, min: int = 1, after: str | None = None, **claims: Any) -> Page[Event]:
            with closing(HttpSource(served.url, resource, token=coded(**claims))) as source:
                return source.page(min, 10, after=after, limit=1)

        async def asked(*given: Any, **claims: Any) -> Page[Event]:
            return await asyncio.to_thread(ask, *given, **{"scope": "forge:versions", **claims})

        assert len((await asked()).items) == 1
        with pytest.raises(TokenInvalid):
            await asked(after="x")
        with pytest.raises(UnknownResource):
            await asked(Resource("ed-fi", "students", "2"))
        with pytest.raises(WindowInvalid):
            await asked(PLANS, 11)
        with pytest.raises(Refused, match="does not permit"):
            await asked(scope="openid")
        with pytest.raises(Unauthorized):
            await asked(exp=1)
        school.execute("UPDATE forge_versions.setting SET oldest = 5")
        with pytest.raises(WindowExpired) as expired:
            await asked()
        assert expired.value.oldest == 5


class Elsewhere(BaseHTTPRequestHandler):
    """Answers every request with what its path names."""

    answers: ClassVar = {
        "page": (200, b"<html>"),
        "empty": (200, b"{}"),
        "number": (200, b'{"items": 1, "next": null, "epoch": 0}'),
        "strange": (200, b'{"items": [{"type": "x"}], "next": null, "epoch": 0}'),
        "older": (200, b'{"items": [], "next": null}'),
        "list": (200, b"[]"),
        "proxy": (502, b"<html>"),
    }

    def do_GET(self) -> None:
        code, body = self.answers[self.path.split("/")[1]]
        self.send_response(code)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def test_what_is_no_forge_server_is_told() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as elsewhere:
        url = f"http://127.0.0.1:{elsewhere.server_port}"
        serving = threading.Thread(target=elsewhere.serve_forever)
        serving.start()
        try:
            for name in ("page", "empty", "number", "strange", "older", "list"):
                source = HttpSource(f"{url}/{name}", PLANS)
                with closing(source), pytest.raises(ForgeError, match="not understood"):
                    source.page(1, 2, after=None, limit=1)
            with closing(HttpSource(f"{url}/proxy", PLANS)) as source, pytest.raises(Failed, match="502"):
                source.available()
        finally:
            elsewhere.shutdown()
            serving.join()
    with closing(HttpSource(url, PLANS)) as source, pytest.raises(Unreachable):
        source.available()
    with closing(HttpSource("http://[", PLANS)) as source, pytest.raises(Unreachable):
        source.available()
