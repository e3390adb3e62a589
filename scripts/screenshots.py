"""Take the two pictures of the README: a trained run in, docs/images/{search,explain}.png out.

    phpq demo && python scripts/screenshots.py phpq-demo/runs/32

Draws the demo's birds at a size that people can look at, indexes them, starts `phpq serve`, and
photographs a search and an explanation in Chromium.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import FilePayload, Page, sync_playwright

import phpq
from phpq.data import plumage, write_plumage
from phpq.demo.run import FULL

SIDE = 256  # pixels of a bird
MOST_BYTES = 300_000  # of a picture
WIDTH, HEIGHT = 1280, 800
PLACES = ("garden", "marsh", "north wood", "old orchard", "river bank")


def main() -> None:
    """Parse, draw, serve, photograph."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run of `phpq demo`")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--query", type=int, default=6, help="species of the query, from 0")
    parser.add_argument("--hit", type=int, default=0, help="hit to explain, from 0")
    parser.add_argument("--keep", type=Path, help="folder for birds and gallery, to use again")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        gallery = folder / "birds.gallery"
        if not gallery.exists():
            make_gallery(folder, options.run)
        query = sorted((folder / "birds" / "test").iterdir())[options.query]
        with serving(gallery) as address:
            photograph(address, min(query.iterdir()), options.out, options.hit)


def make_gallery(folder: Path, run: Path) -> None:
    """Draw the birds of a demo large, and index them with a few made-up facts."""
    seed = json.loads((run.parent.parent / "metrics.json").read_text("utf-8"))["seed"]
    birds = plumage(FULL.species, FULL.images, test_per_species=FULL.queries, size=SIDE, seed=seed)
    root = write_plumage(folder / "birds", birds)
    files = sorted((root / "train").rglob("*.png"))
    items = [
        {
            "path": str(file),
            "id": f"{file.parent.name}/{file.name}",
            "label": file.parent.name,
            "place": PLACES[number * 7 % len(PLACES)],
            "year": 2019 + number * 5 % 6,
        }
        for number, file in enumerate(files)
    ]
    phpq.Gallery.create(folder / "birds.gallery", str(run)).add(items)


@contextmanager
def serving(gallery: Path) -> Iterator[str]:
    """Run `phpq serve` until the pictures are taken."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).parent / "phpq"), "serve", str(gallery)]
    server = subprocess.Popen([*command, "--port", str(port), "--device", "cpu"])
    address = f"http://127.0.0.1:{port}/"
    try:
        for _ in range(300):
            time.sleep(0.2)
            try:
                urllib.request.urlopen(f"{address}ready").close()
            except OSError:
                continue
            break
        yield address
    finally:
        server.terminate()
        server.wait()


def photograph(address: str, query: Path, out: Path, hit: int) -> None:
    """Search with a picture, then ask why."""
    with sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(address)
        photo = FilePayload(name="my-photo.png", mimeType="image/png", buffer=query.read_bytes())
        page.set_input_files("#pick", photo)
        page.wait_for_selector(".hit-link")
        settle(page)
        save(page, out / "search.png")
        page.locator(".hit").nth(hit).get_by_role("button", name="Why").click()
        page.wait_for_selector(".figure-view .heat >> nth=1")
        settle(page)
        save(page, out / "explain.png")
        browser.close()


def settle(page: Page) -> None:
    """Wait until every picture in sight is there."""
    page.wait_for_load_state("networkidle")
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)


def save(page: Page, path: Path) -> None:
    """Keep a picture in as many colours as the limit of bytes allows."""
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    for colours in (256, 192, 128, 96, 64):
        palette = image.quantize(colours)
        image.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG).save(
            path, optimize=True
        )
        if path.stat().st_size < MOST_BYTES:
            break
    print(path, path.stat().st_size)  # noqa: T201


if __name__ == "__main__":
    main()
