"""The fault proxy in front of an echo server: each fault as a client sees it."""

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from forge.testing import FaultProxy


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.request.recv(65536):
                self.request.sendall(data)


class EchoServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@pytest.fixture
def echo() -> Iterator[int]:
    with EchoServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture
def proxy(echo: int) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", echo) as proxy:
        yield proxy


def dial(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


def receive(client: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size and (data := client.recv(65536)):
        received += data
    return received


def ask(client: socket.socket, text: bytes) -> bytes:
    client.sendall(text)
    return receive(client, len(text))


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.005)


def silent(client: socket.socket, seconds: float = 0.15) -> bool:
    client.settimeout(seconds)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(5)
    return False


def test_forwards_both_ways_and_ends_in_order(proxy: FaultProxy) -> None:
    with dial(proxy) as client:
        assert ask(client, b"hello") == b"hello"
        assert proxy.connections == 1
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    eventually(lambda: proxy.connections == 0)


def test_forwards_more_than_any_buffer_holds(proxy: FaultProxy) -> None:
    sent = bytes(range(256)) * 40_000
    with dial(proxy) as client:
        writer = threading.Thread(target=client.sendall, args=(sent,))
        writer.start()
        assert receive(client, len(sent)) == sent
        writer.join()


def test_cut_resets_open_connections_and_serves_new_ones(proxy: FaultProxy) -> None:
    with dial(proxy) as one, dial(proxy) as two:
        ask(one, b"1")
        ask(two, b"2")
        proxy.cut()
        assert proxy.connections == 0
        for client in (one, two):
            with pytest.raises(ConnectionResetError):
                client.recv(1)
    with dial(proxy) as client:
        assert ask(client, b"again") == b"again"


def test_stall_holds_every_byte_until_resume(proxy: FaultProxy) -> None:
    with dial(proxy) as client, dial(proxy) as leaver:
        ask(client, b"before")
        ask(leaver, b"before")
        proxy.stall()
        client.sendall(b"held")
        leaver.shutdown(socket.SHUT_WR)
        with dial(proxy) as late:
            late.sendall(b"late")
            assert silent(client)
            assert silent(leaver)
            assert silent(late)
            assert proxy.connections == 3
            proxy.resume()
            assert receive(client, 4) == b"held"
            assert receive(late, 4) == b"late"
            assert leaver.recv(1) == b""


def test_stall_hides_that_the_target_went_away() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        FaultProxy("127.0.0.1", listener.getsockname()[1]) as proxy,
        dial(proxy) as client,
    ):
        target, _ = listener.accept()
        proxy.stall()
        target.close()
        assert silent(client)
        proxy.resume()
        assert client.recv(1) == b""


def test_cut_ends_a_stalled_connection(proxy: FaultProxy) -> None:
    with dial(proxy) as client:
        ask(client, b"before")
        proxy.stall()
        client.sendall(b"held")
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_refuse_turns_new_connections_away_and_keeps_the_port(proxy: FaultProxy) -> None:
    port = proxy.port
    with dial(proxy) as client:
        ask(client, b"before")
        proxy.refuse()
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            dial(proxy)
        assert ask(client, b"goes on") == b"goes on"
        proxy.accept()
        assert proxy.port == port
        with dial(proxy) as another:
            assert ask(another, b"back") == b"back"


def test_a_target_that_is_down_ends_the_connection() -> None:
    with socket.socket() as bound_but_deaf:
        bound_but_deaf.bind(("127.0.0.1", 0))
        with FaultProxy("127.0.0.1", bound_but_deaf.getsockname()[1]) as proxy:
            with pytest.raises(ConnectionResetError), dial(proxy) as client:
                client.recv(1)
            eventually(lambda: proxy.connections == 0)


def test_stop_leaves_no_thread_and_no_connection(echo: int) -> None:
    before = threading.active_count()
    proxy = FaultProxy("127.0.0.1", echo)
    proxy.start()
    port = proxy.port
    with dial(proxy) as client:
        ask(client, b"before")
        proxy.stall()
        proxy.stop()
        proxy.stop()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    eventually(lambda: threading.active_count() <= before)
    with pytest.raises(RuntimeError, match="not running"):
        proxy.cut()


async def test_async_use(echo: int) -> None:
    async with FaultProxy("127.0.0.1", echo) as proxy:
        with dial(proxy) as client:
            assert ask(client, b"hello") == b"hello"


def test_url_differs_only_in_its_address(proxy: FaultProxy) -> None:
    here = f"127.0.0.1:{proxy.port}"
    assert proxy.url("postgresql://u%40x:p@db.example:5432/shop?a=1%202") == (
        f"postgresql://u%40x:p@{here}/shop?a=1%202"
    )
    assert proxy.url("postgresql://postgres@/shop?host=%2Fsocket&port=5432") == f"postgresql://postgres@{here}/shop"
