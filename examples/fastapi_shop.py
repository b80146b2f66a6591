"""The shop of shop.py inside a FastAPI application, which serves its page too. FastAPI is no dependency of Forge:

pip install fastapi
python shop.py setup
uvicorn fastapi_shop:web --port 8711 --timeout-graceful-shutdown 10         then open http://127.0.0.1:8711
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from shop import app

live = app.asgi()


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    """A mounted application gets no lifespan events: start and stop it here."""
    await live.start()
    yield
    await live.stop()


web = FastAPI(lifespan=lifespan)


@web.get("/")
async def page() -> FileResponse:
    return FileResponse(Path(__file__).with_name("page.html"))


web.mount("/", live)  # after the routes of its own: it answers /forge/…, /healthz, /readyz and /metrics
