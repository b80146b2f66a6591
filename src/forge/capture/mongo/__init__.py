"""MongoDB's change streams as a source, kind `mongo`: `mongodb://host/shop` or `mongodb://host/shop.orders`.

PyMongo is imported at the first use of `MongoSource`.
"""

from typing import TYPE_CHECKING, Any

from forge.errors import SourceError

if TYPE_CHECKING:
    from forge.capture.mongo.source import MongoSource

__all__ = ["MongoSource"]


def __getattr__(name: str) -> Any:
    if name != "MongoSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from forge.capture.mongo.source import MongoSource
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] not in ("pymongo", "bson"):
            raise
        raise SourceError("PyMongo is not installed", fix='pip install "forge-changes[mongo]"') from missing
    return MongoSource
