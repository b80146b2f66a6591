"""The sink: signatures, order, what each answer means, and where requests do not go."""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest

from forge.deliver.message import Message
from forge.deliver.webhooks import Webhook, new_secret, verify
from forge.deliver.webhooks import webhook as module
from forge.deliver.webhooks.signature import sign
from forge.errors import ConfigError, DeliveryRefused, NotDelivered, SignatureInvalid
from tests.deliver.consumers.working import until
from tests.deliver.traffic import deliver, messages
from tests.deliver.webhooks.endpoint import ALLOW, SECRET, Receiver, Request, receiving


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as found:
        yield found


def hook(receiver: Receiver, **options: Any) -> Webhook:
    return Webhook(receiver.url, **{"secret": SECRET, "allow": ALLOW, "timeout": 5.0, **options})


def message(id: str = "7:1", payload: bytes = b"{}", **fields: Any) -> Message:
    return Message(id, "shop.paid", payload, datetime(2026, 11, 16, tzinfo=UTC), **fields)


def in_order(taken: Sequence[Request], sent: Sequence[Message]) -> None:
    """Everything arrived; the first copies of a key's messages in order, and copies are the same."""
    bodies = {each.id: each.payload for each in sent}
    orders: dict[str, list[str]] = defaultdict(list)
    for request in taken:
        assert request.body == bodies[request.id]
        seen = orders[request.headers["forge-key"]]
        if request.id not in seen:
            seen.append(request.id)
    wanted: dict[str, list[str]] = defaultdict(list)
    for each in sent:
        wanted[each.key or ""].append(each.id)
    assert orders == wanted


async def test_a_request_is_signed_and_says_what_it_is(receiver: Receiver) -> None:
    sink = hook(receiver, headers={"authorization": "Bearer x"})
    await sink.send(
        [message(key="Zürich\n 5%", headers={"forge-op": "insert", "content-length": "9", "Authorization": "mine"})]
    )
    await sink.close()
    (request,) = receiver.taken
    headers = request.headers
    assert verify(request.body, headers, SECRET) == "7:1" == headers["idempotency-key"]
    assert (headers["content-type"], headers["forge-topic"], headers["forge-op"]) == (
        "application/json", "shop.paid", "insert"
    )  # fmt: skip
    assert unquote(headers["forge-key"]) == "Zürich\n 5%"
    assert headers["authorization"] == "Bearer x"
    assert headers["content-length"] == "2"
    assert "accept-encoding" not in headers


async def test_both_secrets_sign_while_one_replaces_the_other(receiver: Receiver) -> None:
    newer = new_secret()
    sink = hook(receiver, secret=[newer, SECRET])
    await sink.send([message()])
    await sink.close()
    (request,) = receiver.taken
    assert len(request.headers["webhook-signature"].split()) == 2
    assert verify(request.body, request.headers, newer) == verify(request.body, request.headers, [SECRET]) == "7:1"


def test_what_was_not_signed_is_not_taken() -> None:
    now = int(time.time())
    key = [b"secret" * 4]
    good = {"Webhook-Id": "1", "Webhook-Timestamp": str(now), "Webhook-Signature": sign(key, "1", now, b"{}")}
    assert verify(b"{}", good, SECRET) == "1"
    old = {**good, "Webhook-Timestamp": str(now - 900), "Webhook-Signature": sign(key, "1", now - 900, b"{}")}
    for body, headers in (
        (b"{} ", good),
        (b"{}", old),
        (b"{}", {**good, "Webhook-Id": "2"}),
        (b"{}", {**good, "Webhook-Timestamp": "soon"}),
        (b"{}", {**good, "Webhook-Timestamp": "²"}),
        (b"{}", {**good, "Webhook-Signature": "v1,ü v1a,x"}),
        (b"{}", {}),
    ):
        with pytest.raises(SignatureInvalid):
            verify(body, headers, SECRET)
    with pytest.raises(SignatureInvalid):
        verify(b"{}", good, new_secret())


async def test_keys_are_in_order_and_others_at_once(receiver: Receiver) -> None:
    receiver.answer = lambda request: "slow" if random.random() < 0.5 else 204
    sink, sent = hook(receiver, in_flight=8), messages(200, keys=40)
    await sink.send(sent)
    await sink.close()
    in_order(receiver.taken, sent)
    assert len(receiver.taken) == 200
    assert 2 <= receiver.most <= 8


async def test_what_concerns_a_whole_table_is_overtaken_by_nothing(receiver: Receiver) -> None:
    receiver.answer = lambda request: "slow" if random.random() < 0.5 else 204
    sent = messages(60, keys=30)
    sent[20] = msgspec.structs.replace(sent[20], key=None, alone=True)
    sink = hook(receiver)
    await sink.send(sent)
    await sink.close()
    order = [request.id for request in receiver.taken]
    place = order.index(sent[20].id)
    assert set(order[:place]) == {each.id for each in sent[:20]}


async def test_one_in_flight_is_the_order_of_all(receiver: Receiver) -> None:
    sink, sent = hook(receiver, in_flight=1), messages(50)
    await sink.send(sent)
    await sink.close()
    assert [request.id for request in receiver.taken] == [each.id for each in sent]


async def test_batches(receiver: Receiver) -> None:
    sent = [*messages(25, keys=5), message("8:1", b"\x00\xff", content_type="application/octet-stream", key="b")]
    sink = hook(receiver, batch=10, in_flight=2)
    await sink.send(sent)
    first = [request.id for request in receiver.requests]
    await sink.send(sent)
    await sink.close()
    assert [request.id for request in receiver.requests] == first * 2  # the same batch has the same id
    taken = [part for request in receiver.taken[: len(first)] for part in msgspec.json.decode(request.body)]
    assert {part["id"] for part in taken} == {each.id for each in sent}
    assert all(len(msgspec.json.decode(request.body)) <= 10 for request in receiver.taken)
    assert next(part for part in taken if part["id"] == "8:1") == {
        "id": "8:1", "topic": "shop.paid", "key": "b", "content_type": "application/octet-stream", "data_base64": "AP8="
    }  # fmt: skip
    assert [p["id"] for p in taken if p["key"] == sent[0].key] == [m.id for m in sent if m.key == sent[0].key]


async def test_one_of_a_batch_that_is_refused_is_found(receiver: Receiver) -> None:
    sent = messages(10)
    receiver.answer = lambda request: 422 if b'"7:4"' in request.body else 204
    sink = hook(receiver, batch=10, in_flight=1)
    with pytest.raises(DeliveryRefused) as error:
        await sink.send(sent)
    await sink.close()
    assert error.value.place == 4


@pytest.mark.parametrize("answer", [500, 503, 429, 408, 400, 401, 403, 404, 410, "moved", "reset", "cut", "garbage"])
async def test_what_is_tried_again(receiver: Receiver, answer: int | str) -> None:
    sent = messages(10, keys=3)
    receiver.answer = lambda request: answer if request.id == sent[5].id else 200
    sink = hook(receiver)
    with pytest.raises(NotDelivered) as error:
        await sink.send(sent)
    assert error.value.delivered <= 5
    assert error.value.tried
    assert {request.id for request in receiver.taken} >= {each.id for each in sent[: error.value.delivered]}
    assert [request.id for request in receiver.requests].count(sent[5].id) == 1
    assert all(request.path == "/hook" for request in receiver.requests)  # no redirect is followed
    receiver.answer = lambda request: 200
    await sink.send(sent[error.value.delivered :])
    await sink.close()
    in_order(receiver.taken, sent)


@pytest.mark.parametrize("status", [413, 415, 422])
async def test_what_is_refused(receiver: Receiver, status: int) -> None:
    sent = messages(10, keys=10)
    receiver.answer = lambda request: f"{status} no\x1b[31mgood" if request.id == sent[3].id else 200
    sink = hook(receiver, in_flight=4)
    with pytest.raises(DeliveryRefused, match=f"answered {status}: no�") as error:
        await sink.send(sent)
    await sink.close()
    assert error.value.place == 3
    assert {request.id for request in receiver.taken} >= {each.id for each in sent[:3]}
    assert len(receiver.requests) <= 7  # behind it only what was under way


async def test_a_receiver_that_hangs(receiver: Receiver) -> None:
    receiver.answer = lambda request: "hang"
    sink = hook(receiver, timeout=0.2)
    with pytest.raises(NotDelivered, match=r"did not answer within 0\.2 s"):
        await sink.send([message()])
    await sink.close()


async def test_an_answer_without_end_is_not_read_to_its_end(receiver: Receiver) -> None:
    receiver.answer = lambda request: "endless"
    sink = hook(receiver)
    await sink.send([message()])
    await sink.close()
    assert len(receiver.taken) == 1


async def test_it_says_when_to_come_again(receiver: Receiver) -> None:
    receiver.answer = lambda request: "429 retry-after: 7"
    sink = hook(receiver)
    with pytest.raises(NotDelivered) as error:
        await sink.send([message()])
    await sink.close()
    assert error.value.after == 7


async def test_who_fails_again_and_again_is_left_alone(receiver: Receiver) -> None:
    receiver.answer = lambda request: 500
    sink = hook(receiver)
    for _ in range(5):
        with pytest.raises(NotDelivered, match="answered 500"):
            await sink.send([message()])
    with pytest.raises(NotDelivered, match="left alone") as error:
        await sink.send([message()])
    assert len(receiver.requests) == 5
    assert error.value.after is not None
    trial: list[int] = []

    def repaired(request: Request) -> int:
        if not trial:
            trial.append(receiver.under_way)
        return 204

    receiver.answer = repaired
    await asyncio.sleep(error.value.after)
    sent = messages(40, keys=20)
    first = asyncio.create_task(sink.send(sent))
    await asyncio.sleep(0)
    with pytest.raises(NotDelivered, match="left alone"):  # one tries, others wait for what comes of it
        await sink.send(sent)
    await first
    await sink.close()
    in_order(receiver.taken, sent)
    assert trial == [1]


async def test_what_was_not_sent_was_no_try(receiver: Receiver) -> None:
    receiver.answer = lambda request: 500
    sink = hook(receiver, in_flight=1)
    for _ in range(5):
        with pytest.raises(NotDelivered) as error:
            await sink.send([message()])
        assert error.value.tried
    with pytest.raises(NotDelivered, match="left alone") as error:
        await sink.send([message()])
    await sink.close()
    assert not error.value.tried


async def test_a_slow_receiver_does_not_hold_a_call_for_ever(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUDGET", 0.2)
    receiver.answer = lambda request: "slow"
    sink, sent = hook(receiver, in_flight=2), messages(100, keys=50)
    with pytest.raises(NotDelivered, match="slow") as error:
        await sink.send(sent)
    assert 0 < error.value.delivered < 100
    assert not error.value.tried
    await sink.close()
    assert {request.id for request in receiver.taken} >= {each.id for each in sent[: error.value.delivered]}


async def test_nothing_is_in_flight_after_a_cancellation(receiver: Receiver) -> None:
    receiver.answer = lambda request: "hang"
    sink = hook(receiver)
    task = asyncio.create_task(sink.send(messages(50, keys=50)))
    await until(lambda: receiver.under_way == 16)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: receiver.under_way == 0)
    await sink.close()
    assert len(receiver.requests) == 16


async def test_a_key_is_in_order_whatever_the_topics(receiver: Receiver) -> None:
    receiver.answer = lambda request: "slow" if request.id == "1" else 204
    sink = hook(receiver)
    await sink.send([message("1", key="7"), msgspec.structs.replace(message("2", key="7"), topic="other")])
    await sink.close()
    assert [request.id for request in receiver.taken] == ["1", "2"]


async def test_an_answer_counts_however_its_body_ends(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DRAIN", 0.1)
    receiver.answer = lambda request: "late"
    sink = hook(receiver, timeout=20)
    await sink.send([message()])
    await sink.close()
    assert len(receiver.taken) == 1


async def test_connections_are_used_again(receiver: Receiver) -> None:
    receiver.answer = lambda request: "200 thanks"
    sink = hook(receiver, in_flight=2)
    await sink.send(messages(40, keys=40))
    await sink.close()
    assert receiver.connections <= 2


async def test_many_callers_share_what_may_be_in_flight(receiver: Receiver) -> None:
    receiver.answer = lambda request: "slow"
    sink = hook(receiver, in_flight=2, timeout=2)
    await asyncio.gather(*(sink.send(messages(10, keys=10, first=first)) for first in range(0, 60, 10)))
    await sink.close()
    assert len(receiver.taken) == 60
    assert receiver.most == 2


async def test_batches_are_full_and_not_too_large(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = hook(receiver, batch=50)
    await sink.send(messages(100, keys=100))
    sizes = [len(msgspec.json.decode(request.body)) for request in receiver.taken]
    assert sum(sizes) == 100
    assert len(sizes) <= 3
    assert max(sizes) <= 50
    monkeypatch.setattr(module, "LARGEST", 20_000)
    await sink.send(messages(100, keys=100, size=1000))
    await sink.close()
    assert all(len(request.body) <= 20_000 for request in receiver.taken)
    assert sum(len(msgspec.json.decode(request.body)) for request in receiver.taken) == 200


async def test_a_refused_batch_is_not_searched_for_ever(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUDGET", 0.3)

    def slowly(request: Request) -> int | str:
        return 422 if len(msgspec.json.decode(request.body)) > 1 else "slow"

    receiver.answer = slowly
    sink = hook(receiver, batch=100, in_flight=1)
    with pytest.raises(NotDelivered, match="slow") as error:
        await sink.send(messages(100))
    await sink.close()
    assert 0 < error.value.delivered < 100


async def test_a_batch_is_json_whatever_is_in_it(receiver: Receiver) -> None:
    sink = hook(receiver, batch=10)
    await sink.send([message("1", b""), message("2", b'1},{"id":"x"'), message("3", b"[1]")])
    await sink.close()
    told = [part for request in receiver.taken for part in msgspec.json.decode(request.body)]
    assert [part["id"] for part in told] == ["1", "2", "3"]
    assert ["data" in part for part in told] == [False, False, True]


async def test_a_secret_url_is_in_no_error(receiver: Receiver) -> None:
    sink = Webhook(f"{receiver.url}/T0KEN?key=SECRET", secret=SECRET, allow=ALLOW)
    for answer in ("garbage", "cut", "reset", 500):
        receiver.answer = lambda request, answer=answer: answer  # type: ignore[misc]
        with pytest.raises(NotDelivered) as error:
            await sink.send([message()])
        assert "T0KEN" not in str(error.value)
        assert "SECRET" not in str(error.value)
    await sink.close()


async def test_a_url_is_sent_as_it_was_given(receiver: Receiver) -> None:
    sink = Webhook(f"{receiver.url}?sig=a%2Fb", secret=SECRET, allow=ALLOW)
    await sink.send([message()])
    await sink.close()
    assert receiver.taken[0].path == "/hook?sig=a%2Fb"


async def test_all_arrives_whatever_the_receiver_does(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)
    monkeypatch.setattr("forge.deliver.webhooks.breaker.FIRST", 0.01)
    monkeypatch.setattr("forge.deliver.webhooks.breaker.LONGEST", 0.05)

    def moody(request: Request) -> int | str:
        bad: list[int | str] = [500, 503, "reset", "cut", "slow", "hang", "garbage", "moved"]
        return chance.choice(bad) if chance.random() < 0.1 else 204

    receiver.answer = moody
    sink, sent = hook(receiver, timeout=0.3, in_flight=8), messages(400, keys=60)
    failures = await deliver(sink, sent)
    await sink.close()
    assert failures > 0
    in_order(receiver.taken, sent)


async def test_it_fits_into_a_request(receiver: Receiver) -> None:
    sink = hook(receiver)
    with pytest.raises(DeliveryRefused, match="more than a webhook is sent"):
        await sink.send([message(payload=b" " * (module.LARGEST + 1))])
    with pytest.raises(DeliveryRefused, match="line break"):
        await sink.send([message(headers={"x": "a\nb"})])
    for id in ("ü", "a\x1f", " 1"):
        with pytest.raises(DeliveryRefused, match="ASCII"):
            await sink.send([message(id)])
    await sink.close()
    assert not receiver.requests


@pytest.mark.parametrize(
    ("url", "allow", "said"),
    [
        ("ftp://example.com/", [], "no URL"),
        ("https://", [], "no URL"),
        ("https://exa mple.com/", [], "no URL"),
        ("https://example.com:99999/", [], "no URL"),
        ("not a url", [], "no URL"),
        ("https://[::1", [], "no URL"),
        ("https://ada:secret@example.com/", [], "a user or a fragment"),
        ("ftp://ada:secret@example.com/", [], "no URL"),
        ("https://[fec0::1]/", [], "inside a network"),
        ("https://192.0.0.192/", [], "inside a network"),
        ("https://168.63.129.16/", [], "inside a network"),
        ("http://example.com/", [], "plain http"),
        ("https://127.0.0.1/", [], "inside a network"),
        ("https://169.254.169.254/latest", [], "inside a network"),
        ("https://10.0.0.1/", ["10.1.0.0/16"], "inside a network"),
        ("https://[::1]/", [], "inside a network"),
        ("https://[::ffff:10.0.0.1]/", [], "inside a network"),
        ("https://[fe80::1]/", [], "inside a network"),
        ("https://0.0.0.0/", [], "inside a network"),
        ("https://100.64.0.1/", [], "inside a network"),
        ("https://example.com/", ["10.0.0.0/33"], "no network"),
    ],
)
def test_where_it_does_not_go(url: str, allow: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        Webhook(url, secret=SECRET, allow=allow)
    assert "secret@" not in str(error.value)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("localhost", "inside a network"),
        ("0x7f.1", "inside a network"),
        ("127.1", "not a canonical"),
        ("2130706433", "not a canonical"),
    ],
)
async def test_a_name_that_leads_inside(receiver: Receiver, host: str, said: str) -> None:
    """Whatever the name, the address counts."""
    sink = Webhook(f"https://{host}:{receiver.port}/", secret=SECRET, timeout=5)
    with pytest.raises(NotDelivered, match=f"cannot be reached: .*{said}"):
        await sink.send([message()])
    await sink.close()
    assert not receiver.requests


async def test_a_name_that_is_allowed(receiver: Receiver) -> None:
    sink = Webhook(f"http://localhost:{receiver.port}/", secret=SECRET, allow=["localhost"])
    await sink.send([message()])
    await sink.close()
    assert len(receiver.taken) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"secret": "whsec_short"},
        {"secret": "plain text that is long enough"},
        {"secret": []},
        {"batch": 0},
        {"in_flight": 1000},
        {"timeout": 0},
        {"timeout": 31},
        {"headers": {"webhook-id": "1"}},
        {"headers": {"x": "ü"}},
        {"headers": {"content-length": "1"}},
        {"headers": {"expect": "100-continue"}},
        {"headers": {"x y": "1"}},
        {"headers": {"": "1"}},
        {"allow": "127.0.0.1"},
    ],
)
def test_what_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        Webhook(**{"url": "https://example.com/", "secret": SECRET, **options})
    assert error.value.fix
