"""How fast a folder of JPEGs is indexed on a Ray cluster, beside one process on the same machine.

    python benchmarks/ray_encoding.py                       # drawn birds, resnet18, 1 and 2 actors
    python benchmarks/ray_encoding.py --folder photos/ --actors 1 2 4 --device auto --json

Local: `Gallery.add` in this process, with all its cores. Ray: the same call with `ray_engine`, on a
cluster that is started for it with the cores of this machine. Two rates are given: of the whole
call, which pays for starting actors and loading models; and of what comes after the first quarter,
which is what a long run sees. Every gallery must be the local one, bit for bit, or this fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexing import build_model, draw_photos
from provenance import provenance

from phpq.cluster.connection import LOCAL
from phpq.cluster.encoding import ray_engine
from phpq.data.decode import IMAGE_EXTENSIONS
from phpq.gallery import Gallery, GalleryStore


@dataclass(frozen=True)
class Speed:
    """One way of indexing.

    Attributes:
        way: "local", or "ray, N actors".
        images: How many were indexed.
        seconds: From the call to the last commit; the best of all repeats.
        steady: Images per second after the first quarter; the best of all repeats.
        equal: Whether all columns and rows are those of the first local gallery.
    """

    way: str
    images: int
    seconds: float
    steady: float
    equal: bool

    @property
    def overall(self) -> float:
        """Images per second of the whole call."""
        return self.images / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "way": self.way,
            "images": self.images,
            "seconds": round(self.seconds, 2),
            "overall_per_s": round(self.overall, 1),
            "steady_per_s": round(self.steady, 1),
            "equal": self.equal,
        }


def content(folder: Path) -> Any:
    """Return all columns and rows of a gallery, in the order of insertion."""
    data = GalleryStore.open(folder).dataset
    return data.to_table(columns=sorted(data.schema.names)).sort_by("row")


def index_once(folder: Path, source: Path, options: argparse.Namespace, actors: int) -> list[float]:
    """Index into a new gallery; returns the seconds, and images per second after a quarter.

    Args:
        folder: The gallery to make.
        source: The images.
        options: Of the command line.
        actors: On Ray; 0 is this process.
    """
    model = build_model(options.backbone, options.device if not actors else "cpu")
    gallery = Gallery.create(folder, model, keep_embeddings=True)
    times: list[tuple[float, int]] = []

    def progress(_: str, done: int, __: int) -> None:
        times.append((time.perf_counter(), done))

    ray = ray_engine(folder, options.ray, actors=actors, device=options.device)
    with ray if actors else nullcontext() as engine:  # the cluster is up before the clock starts
        start = time.perf_counter()
        gallery.add(source, batch_size=options.batch_size, progress=progress, engine=engine)
        seconds = time.perf_counter() - start
    last, after = times[-1]
    first, before = next(moment for moment in times if 4 * moment[1] >= after)
    return [seconds, (after - before) / max(last - first, 1e-9)]


def measure(source: Path, options: argparse.Namespace, say: Callable[[str], None]) -> list[Speed]:
    """Take turns between the ways, and keep the best of each."""
    results: dict[int, list[list[float]]] = {actors: [] for actors in (0, *options.actors)}
    equal = dict.fromkeys(results, True)
    wanted = None
    for repeat in range(options.repeats):
        for actors in results:
            say(f"round {repeat + 1}: {_way(actors)}")
            with tempfile.TemporaryDirectory() as folder:
                results[actors].append(index_once(Path(folder) / "g", source, options, actors))
                found = content(Path(folder) / "g")
            wanted = found if wanted is None else wanted
            equal[actors] &= found.equals(wanted)
    assert wanted is not None
    return [
        Speed(
            _way(actors),
            wanted.num_rows,
            min(seconds for seconds, _ in runs),
            max(steady for _, steady in runs),
            equal[actors],
        )
        for actors, runs in results.items()
    ]


def _way(actors: int) -> str:
    return f"ray, {actors} actor{'s' * (actors > 1)}" if actors else "local"


def main() -> None:
    """Measure and print a table, or JSON; exit code 1 if a gallery is not the local one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, help="JPEGs; by default drawn ones")
    parser.add_argument("--images", type=int, default=1200, help="how many to draw")
    parser.add_argument("--size", type=int, nargs=2, default=(500, 375), help="of drawn images")
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ray", default=LOCAL, help="address of a cluster; by default a new one")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as drawn:
        source = options.folder
        if source is None:
            source = Path(drawn)
            draw_photos(source, options.images, tuple(options.size))
        if not any(file.suffix.lower() in IMAGE_EXTENSIONS for file in source.rglob("*")):
            sys.exit(f"There are no images in {source}.")
        rows = measure(source, options, lambda text: print(text, file=sys.stderr))
    if options.json:
        results = [row.to_dict() for row in rows]
        print(json.dumps({"made": provenance(options), "results": results}, indent=2))
    else:
        print(f"{options.backbone}, {rows[0].images} images, batches of {options.batch_size}")
        print(f"{'way':<16}{'seconds':>9}{'images/s':>10}{'steady':>9}{'equal':>8}")
        for row in rows:
            numbers = f"{row.seconds:>9.1f}{row.overall:>10.1f}{row.steady:>9.1f}"
            print(f"{row.way:<16}{numbers}{'yes' if row.equal else 'NO':>8}")
    sys.exit(not all(row.equal for row in rows))


if __name__ == "__main__":
    main()
