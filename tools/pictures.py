"""Makes the README's pictures from the real thing: `python tools/pictures.py`.

In comes nothing but this checkout, set up; out come docs/images/console-*.png, pages of the console in light and dark,
and shop.webp, some seconds of the shop while somebody orders and pays. A demo of its own runs meanwhile, on an embedded
PostgreSQL in a folder that is gone afterwards. What it shows of speed is this machine's, so let it be quiet.
"""

import argparse
import asyncio
import io
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

from PIL import Image
from playwright.async_api import Browser, BrowserContext, FrameLocator, Page, async_playwright

from tests.servers.chromium import ARGUMENTS, PATH

IMAGES: Final = Path(__file__).parent.parent / "docs" / "images"
STILL: Final = (1200, 720)
FILM: Final = (1000, 600)
VIEWS: Final = (("feed", "feed", 4.0), ("row", "row/shop.orders/3", 2.0), ("queries", "queries", 12.0))
"""Pages of the console: their names, where they are, and for how many seconds they are looked at before."""
Scheme = Literal["light", "dark"]


@asynccontextmanager
async def demo(rate: float) -> AsyncIterator[str]:
    """The address of a running demo."""
    with tempfile.TemporaryDirectory(prefix="forge-pictures-") as data:
        os.chmod(data, 0o711)  # the server's own user looks into it
        options = ["--data", data, "demo", "--no-lake", "--no-open", "--rate", str(rate)]
        running = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "forge", *options, cwd=data, stdout=asyncio.subprocess.PIPE
        )
        assert running.stdout is not None
        reading = None
        try:
            async with asyncio.timeout(120):
                while not (found := re.match(rb"live page  (\S+)", await running.stdout.readline())):
                    if running.stdout.at_eof():
                        raise SystemExit("the demo ended")
            reading = asyncio.create_task(running.stdout.read())  # else it would wait to be heard
            yield found[1].decode()
        finally:
            if running.returncode is None:
                running.terminate()
                await running.wait()
            if reading is not None:
                await reading


@asynccontextmanager
async def profile(browser: Browser, size: tuple[int, int], scheme: Scheme) -> AsyncIterator[BrowserContext]:
    """A browser whose pages have that size."""
    viewport: Any = {"width": size[0], "height": size[1]}
    context = await browser.new_context(viewport=viewport, color_scheme=scheme)
    try:
        yield context
    finally:
        await context.close()


async def open_shop(context: BrowserContext, url: str) -> tuple[Page, FrameLocator, FrameLocator]:
    """The shop's page with its two windows, filled."""
    page = await context.new_page()
    await page.goto(url)
    counter, office = (page.frame_locator(f"iframe[title^='The {name}']") for name in ("counter", "office"))
    for window in (counter, office):
        await window.locator("li").first.wait_for()
    return page, counter, office


async def stills(browser: Browser, url: str) -> dict[str, bytes]:
    """Pages of the console, each in light and dark, while somebody looks at the shop."""
    found = {}
    schemes: tuple[Scheme, ...] = ("light", "dark")
    for scheme in schemes:
        async with profile(browser, STILL, scheme) as context:
            await open_shop(context, url)
            console = await context.new_page()
            for name, where, seconds in VIEWS:
                await console.goto(f"{url}/console#/{where}")
                await asyncio.sleep(seconds)
                found[f"console-{name}-{scheme}"] = await console.screenshot()
    return found


async def film(browser: Browser, url: str, seconds: float) -> list[tuple[float, bytes]]:
    """The shop, while somebody orders in one window and pays in the other: pictures, and when each was taken."""
    frames = []
    async with profile(browser, FILM, "light") as context:
        page, counter, office = await open_shop(context, url)
        visit = asyncio.create_task(_visit(counter, office))
        began = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            frames.append((now, await page.screenshot()))
        await visit
    return frames


async def _visit(counter: FrameLocator, office: FrameLocator) -> None:
    for product in ("Chisel", "Hammer", "Rasp"):
        await asyncio.sleep(1)
        await counter.get_by_role("button", name=f"order {product}").click()
        await asyncio.sleep(0.6)
        await office.get_by_role("button", name="pay").first.click()


def keep(to: Path, pictures: dict[str, bytes], frames: list[tuple[float, bytes]]) -> None:
    """Write the files, each as small as it may be without looking worse."""
    for name, picture in pictures.items():
        Image.open(io.BytesIO(picture)).convert("RGB").quantize(256).save(to / f"{name}.png", optimize=True)
    times = [at for at, _ in frames]
    lasting = [max(20, round((after - before) * 1000)) for before, after in pairwise([*times, times[-1] + 1])]
    first, *rest = [Image.open(io.BytesIO(picture)) for _, picture in frames]
    first.save(to / "shop.webp", save_all=True, append_images=rest, duration=lasting, loop=0, quality=70, method=6)


async def taken(seconds: float) -> tuple[dict[str, bytes], list[tuple[float, bytes]]]:
    """All pictures."""
    async with demo(rate=6) as url, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=PATH, args=ARGUMENTS)
        await asyncio.sleep(20)  # so that there is something to see
        try:
            return await stills(browser, url), await film(browser, url, seconds)
        finally:
            await browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the README's pictures from a running demo.")
    parser.add_argument("--to", type=Path, default=IMAGES, help="the folder that they go to: docs/images")
    parser.add_argument("--seconds", type=float, default=6.0, help="of the film")
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    keep(options.to, *asyncio.run(taken(options.seconds)))
    for made in (*sorted(options.to.glob("console-*.png")), options.to / "shop.webp"):
        print(f"{made.name}   {made.stat().st_size / 1000:,.0f} kB")


if __name__ == "__main__":
    main()
