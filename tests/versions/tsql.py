"""Microsoft's own parser of T-SQL: its SQL tools service, which tells editors what is wrong with a text.

It comes in the wheel of mssql-cli 1.0.0 (`mssqlcli/mssqltoolsservice/bin/MicrosoftSqlToolsServiceLayer`) and needs
libssl.so.1.1 on LD_LIBRARY_PATH.
"""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import IO, Any

SOON = 60.0


class Parser:
    """A running service."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._into: IO[bytes] = process.stdin
        self._told: Queue[dict[str, Any] | None] = Queue()
        threading.Thread(target=self._listen, args=(process.stdout,), daemon=True).start()
        self._send("initialize", {"processId": os.getpid(), "rootPath": "/", "capabilities": {}}, id="1")
        self._until(lambda message: message.get("id") == "1")
        checking = {"enableIntelliSense": True, "enableErrorChecking": True}
        self._send("workspace/didChangeConfiguration", {"settings": {"mssql": {"intelliSense": checking}}})

    def problems(self, name: str, text: str) -> list[str]:
        """What is wrong with a script, each with its line."""
        uri = f"file:///{name}"
        document = {"uri": uri, "languageId": "sql", "version": 1, "text": text}
        self._send("textDocument/didOpen", {"textDocument": document})
        told = self._until(
            lambda message: (
                message.get("method") == "textDocument/publishDiagnostics" and message["params"]["uri"] == uri
            )
        )
        return [f"{one['range']['start']['line'] + 1}: {one['message']}" for one in told["params"]["diagnostics"]]

    def _send(self, method: str, params: dict[str, Any], **more: str) -> None:
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()
        self._into.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._into.flush()

    def _listen(self, out: IO[bytes]) -> None:
        length = 0
        for line in iter(out.readline, b""):
            name, _, value = line.strip().partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
            elif not name:
                self._told.put(json.loads(out.read(length)))
        self._told.put(None)

    def _until(self, wanted: Any) -> dict[str, Any]:
        while (message := self._told.get(timeout=SOON)) is not None:
            if wanted(message):
                return message
        raise AssertionError("the service ended; see that it finds libssl.so.1.1")


@contextmanager
def tsql_parser(program: Path, folder: Path) -> Iterator[Parser]:
    """The service, while the block lasts; it writes its logs into the folder."""
    environment = {**os.environ, "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1"}
    with subprocess.Popen(
        [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, env=environment
    ) as process:
        try:
            yield Parser(process)
        finally:
            process.terminate()
