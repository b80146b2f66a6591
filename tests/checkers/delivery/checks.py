"""Compare what was received with the log: a pure function, so that tests can make it fail."""

from collections.abc import Collection, Mapping, Sequence

import msgspec


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """A side effect: a change that a consumer handled, under which fence of which shard."""

    consumer: str
    shard: int
    fence: int
    change: str
    key: str


def check(
    truth: Mapping[str, Sequence[str]],
    receipts: Sequence[Receipt],
    *,
    consumer: str,
    exactly_once: bool = False,
    late: Collection[Receipt] = (),
) -> list[str]:
    """What is wrong; `truth` has for each row the ids of its changes in order. What is `late` was done by a worker that
    was held up between proving its lease and the side effect: it may come under an older fence, but in its turn.

    >>> truth = {"1": ["a", "b", "c"]}
    >>> def seen(*some): return [Receipt("c", 0, fence, id, "1") for fence, id in some]
    >>> check(truth, seen((1, "a"), (1, "b"), (2, "b"), (2, "c")), consumer="c")
    []
    >>> check(truth, seen((1, "a"), (2, "c")), consumer="c")
    ['c: b of row 1 is lost', 'c: c of row 1 came before b']
    >>> check(truth, seen((1, "a"), (1, "b"), (1, "b"), (2, "c")), consumer="c")
    ['c: b of row 1 came twice under fence 1']
    >>> check(truth, seen((1, "a"), (2, "a"), (2, "b"), (2, "c")), consumer="c", exactly_once=True)
    ['c: a of row 1 came twice']
    >>> check(truth, seen((1, "a"), (2, "b"), (1, "b"), (2, "c")), consumer="c")
    ['c: b of row 1 was handled under fence 1 after 2']
    >>> check(truth, seen((1, "a"), (2, "b"), (1, "b"), (2, "c")), consumer="c", late=seen((1, "b")))
    []
    >>> check(truth, seen((2, "a"), (1, "c"), (2, "b")), consumer="c", late=seen((1, "c")))
    ['c: c of row 1 came before b']
    """
    wrong: list[str] = []
    rows: dict[str, list[Receipt]] = {}
    for receipt in receipts:
        rows.setdefault(receipt.key, []).append(receipt)
    for key in sorted(rows.keys() - truth.keys()):
        wrong.append(f"{consumer}: row {key} is unknown to the log")
    for key, ids in truth.items():
        found = rows.get(key, [])
        wrong += [f"{consumer}: {id} of row {key} is lost" for id in ids if id not in {each.change for each in found}]
        wrong += _order(consumer, key, list(ids), found, exactly_once, late)
    return wrong


def _order(
    consumer: str, key: str, ids: list[str], found: list[Receipt], exactly_once: bool, late: Collection[Receipt]
) -> list[str]:
    wrong = []
    place = {id: number for number, id in enumerate(ids)}
    furthest, last, fence = -1, -1, -1
    if len({each.shard for each in found}) > 1:
        wrong.append(f"{consumer}: row {key} was handled by two shards")
    for each in found:
        if each.change not in place:
            wrong.append(f"{consumer}: {each.change} of row {key} is unknown to the log")
            continue
        number = place[each.change]
        if each.fence < fence and each in late:
            if number > furthest + 1:
                wrong.append(f"{consumer}: {each.change} of row {key} came before {ids[furthest + 1]}")
            furthest = max(furthest, number)
            continue
        if each.fence < fence:
            wrong.append(f"{consumer}: {each.change} of row {key} was handled under fence {each.fence} after {fence}")
        if number > furthest + 1:
            wrong.append(f"{consumer}: {each.change} of row {key} came before {ids[furthest + 1]}")
        elif each.fence == fence and number <= last:
            again = "twice under" if number == last else f"after {ids[last]} under"
            wrong.append(f"{consumer}: {each.change} of row {key} came {again} fence {fence}")
        elif exactly_once and number <= furthest:
            wrong.append(f"{consumer}: {each.change} of row {key} came twice")
        furthest, last, fence = max(furthest, number), number, each.fence
    return wrong
