"""A long condition runs in the server, which takes no documents that are nested deeply."""

from typing import Any

import pytest
from pymongo.asynchronous.database import AsyncDatabase

from forge.capture import Filter
from forge.capture.mongo import MongoSource
from tests.capture.mongo.reading import take, told

pytestmark = [pytest.mark.contract("W2"), pytest.mark.contract("W9")]


async def test_hundreds_of_parts(database: AsyncDatabase[dict[str, Any]], url: str) -> None:
    condition = " OR ".join(f"n = {number}" for number in range(300))
    async with MongoSource(url, Filter(where=condition)) as source:
        assert "rows" in (await source.status()).in_feed
        cursor = await source.now()
        await database.t.insert_many([{"_id": number, "n": number} for number in (300, 299, 301, 0)])
        assert told(await take(source.stream(cursor), 2)) == [("insert", "t", "299"), ("insert", "t", "0")]
