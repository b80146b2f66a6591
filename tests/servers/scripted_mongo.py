"""MongoDB's wire protocol with scripted answers, for what no server here does."""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

Script = Callable[[str, dict[str, Any]], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]
"""A command's name and the command in, fields of the reply out, at once or later."""


class ScriptedMongo:
    """Answers OP_MSG with documents of a script, on a port of its own, in the loop that it is entered in.

    What the script raises KeyError for is answered as a mongod of a replica set would: hello, buildInfo, ping,
    endSessions and killCursors; anything else is an error. `commands` has all that were asked.
    """

    def __init__(self, script: Script, version: str = "7.0.0") -> None:
        self._script = script
        self._version = version
        self._server: asyncio.Server | None = None
        self.commands: list[dict[str, Any]] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._server is not None
        self._server.close()

    def url(self, database: str) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return f"mongodb://127.0.0.1:{port}/{database}?directConnection=true"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readexactly(16)
                size, request, _, code = struct.unpack("<iiii", head)
                body = await reader.readexactly(size - 16)
                if code != 2013:
                    raise ValueError(f"only OP_MSG is spoken here, not {code}")
                await self._reply(body, request, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _reply(self, body: bytes, request: int, writer: asyncio.StreamWriter) -> None:
        import bson

        command: dict[str, Any] = bson.decode(body[5:])
        self.commands.append(command)
        name = next(iter(command))
        try:
            found = self._script(name, command)
            reply = {"ok": 1, **(await found if isinstance(found, Awaitable) else found)}
        except KeyError:
            reply = self._usual(name)
        message = b"\x00" * 5 + bson.encode(reply)
        writer.write(struct.pack("<iiii", len(message) + 16, 0, request, 2013) + message)
        await writer.drain()

    def _usual(self, name: str) -> dict[str, Any]:
        from bson.timestamp import Timestamp

        now = {"ok": 1, "operationTime": Timestamp(1_800_000_000, 1)}
        if name in ("hello", "ismaster", "isMaster"):
            limits = {"maxBsonObjectSize": 1 << 24, "maxMessageSizeBytes": 48_000_000, "maxWriteBatchSize": 100_000}
            wire = {"minWireVersion": 0, "maxWireVersion": 21, "logicalSessionTimeoutMinutes": 30, "helloOk": True}
            return {**now, **limits, **wire, "setName": "rs0", "hosts": [], "isWritablePrimary": True}
        if name == "buildInfo":
            return {**now, "version": self._version, "versionArray": [*map(int, self._version.split(".")), 0]}
        if name in ("ping", "endSessions", "killCursors"):
            return now
        return {"ok": 0, "code": 59, "errmsg": f"no such command: {name}"}
