"""Writes every number of README and docs/results from the JSON beside them, or checks it.

    python benchmarks/render.py           # rewrites (make numbers)
    python benchmarks/render.py --check   # names what differs; exit code 1

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. Pages that `phpq reproduce` wrote
are rendered whole, and their JSON is compared with the records of cub200/cells.jsonl. Sentences
with numbers are claims (`render_claims.py`); README may have no other number.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import render_speed as speed
import render_tables as tables
import scale_guide
from render_claims import CLAIMS, NO_MEASUREMENT, NUMBER, Claim, unused_exceptions
from render_tables import CARRIED, Load
from scale_model import CostModel

ROOT = Path(__file__).parents[1]
_TABLE = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end -->)", re.S)
_GRID = "cub200"  # data set of the stored grid


def _scale(name: str) -> Callable[[Load], str]:
    def render(load: Load) -> str:
        data = load("scale")
        return scale_guide.TABLES[name](data, CostModel.fit(data["cases"], data["m"]))

    return render


TABLES: dict[str, Callable[[Load], str]] = {
    "readme.headline": tables.readme_headline,
    "readme.search": speed.readme_search,
    "readme.unseen": tables.readme_unseen,
    "cub200.quality": tables.cub200_quality,
    "cub200.speed": tables.cub200_speed,
    "other-sets.quality": tables.other_sets,
    "unseen.half": tables.unseen_half,
    "unseen.open": tables.unseen_open,
    "unseen.in-use": tables.unseen_in_use,
    "knows.scores": tables.knows_scores(*tables.KNOWS),
    "knows.model": tables.knows_scores("knows-model"),
    "knows.parents": tables.knows_parents,
    "compare.page": tables.compare_page,
    "compare.resnet50": tables.compare_section("compare-resnet50", "What is found"),
    "compare.tuned": tables.compare_section("compare-tuned", "What is found"),
    "compare.tuned-1M": tables.compare_section(
        "compare-tuned", "Weight and speed, 1,000,000 images"
    ),
    "compare.tuned-10M": tables.compare_section(
        "compare-tuned", "Weight and speed, 10,000,000 images"
    ),
    "pointing.several": tables.pointing_several,
    "pointing.clutter": tables.pointing_clutter,
    "pointing.marks": tables.pointing_marks,
    "knows.audit": tables.knows_audit,
    "knows.copies": tables.knows_copies,
    "search.10M": speed.search_rows(10**7),
    "search.1M": speed.search_rows(10**6),
    "search.growth": speed.search_growth,
    "search.threads": speed.search_threads,
    "search.rivals": speed.search_rivals,
    "search.beside": speed.search_beside,
    "search.crops": speed.search_crops,
    "search.new-kinds": speed.search_new_kinds,
    "laptop.search": speed.laptop_search,
    "laptop.serve": speed.laptop_serve,
    "laptop.codes": speed.laptop_codes,
    "laptop.first": speed.laptop_first,
    "laptop.whole": speed.laptop_whole,
    "gallery.upgrade": speed.gallery_upgrade,
    "gallery.kills": speed.gallery_kills,
    "serve.loads": speed.serve_loads,
    "sharded.speeds": speed.sharded_speeds,
    "sharded.kills": speed.sharded_kills,
    "grid.whole": speed.grid_whole,
    "grid.cells": speed.grid_cells,
    "grid.images": speed.grid_images,
    **{f"scale.{name}": _scale(name) for name in scale_guide.TABLES},
}

# Tables of benchmarks that were not run since they write JSON: carried over until that is there.
LATER: dict[str, tuple[str, Callable[[Any], str]]] = {
    "gallery.indexing": ("gallery", speed.gallery_indexing),
    "sharded.encoding": ("encoding", speed.sharded_encoding),
}


def loader(root: Path) -> Load:
    """Return what reads docs/results/NAME.json of a copy of the repository, each once."""

    @functools.cache
    def load(name: str) -> Any:
        return json.loads((root / "docs" / "results" / f"{name}.json").read_text("utf-8"))

    return load


def pages(root: Path) -> list[Path]:
    """Return the documents that hold measurements."""
    docs = root / "docs"
    return [root / "README.md", *sorted((docs / "results").glob("*.md")), docs / "guides/scale.md"]


def rendered_table(name: str, load: Load) -> str:
    """Return one table; a name that neither code nor carried.json knows is an error."""
    if name in TABLES:
        return TABLES[name](load)
    carried = load(CARRIED)["tables"]
    content = tables.measured(load, LATER[name][0]) if name in LATER else None
    if content is not None:
        return LATER[name][1](content)
    if name not in carried:
        raise ValueError(f"There is no table {name!r}, in benchmarks/render.py or carried.json.")
    return tables.carried_table(carried[name])


def rewrite(text: str, load: Load, claims: tuple[Claim, ...] = ()) -> str:
    """Renew the tables and the claims of a page."""
    text = _TABLE.sub(lambda m: f"{m[1]}{rendered_table(m[2], load)}\n{m[4]}", text)
    for claim in claims:
        text = claim.renew(text, load)
    return text


def reproduced(page: Path, load: Load) -> str | None:
    """Return the whole page that `phpq reproduce` writes for its JSON; None of another page."""
    if not page.stem.endswith(f"-{_GRID}"):
        return None
    from phpq.reproduce.pages import stored_page

    notes = json.loads((page.parent / _GRID / "notes.json").read_text("utf-8"))
    return stored_page(load(page.stem), notes)


def rendered(page: Path, root: Path, load: Load) -> str:
    """Return a page as it must be."""
    whole = reproduced(page, load)
    if whole is not None:
        return whole
    name = page.relative_to(root).as_posix()
    return rewrite(page.read_text("utf-8"), load, CLAIMS.get(name, ()))


def problems(root: Path = ROOT) -> list[str]:
    """Return what differs from the JSON, what has none, and what no record confirms."""
    load, found = loader(root), list[str]()
    for page in pages(root):
        name, text = page.relative_to(root).as_posix(), page.read_text("utf-8")
        try:
            wanted = rendered(page, root, load)
        except (ValueError, KeyError, FileNotFoundError) as error:
            found.append(f"{name}: {error}")
            continue
        found += _difference(name, text, wanted)
        if page.parent.name != "guides" and reproduced(page, load) is None:
            found += [f"{name}: the table {row!r} has no data." for row in _loose_tables(text)]
    readme = (root / "README.md").read_text("utf-8")
    found += [f"README.md: the number {number} is of no claim." for number in unclaimed(readme)]
    found += [f"README.md: no longer says {phrase!r}." for phrase in unused_exceptions(readme)]
    return found + wrong_citations(load) + wrong_cells(root, load) + unsourced(root, load)


def _difference(name: str, text: str, wanted: str) -> list[str]:
    """Name the first line that differs, and the table it stands in."""
    if text == wanted:
        return []
    old, new = text.splitlines(), wanted.splitlines()
    place = next(
        (n for n, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]),
        min(len(old), len(new)),
    )
    opened = [
        m[1] for line in old[:place] if (m := re.match(r"<!-- (?:table: (\S+)|end) -->", line))
    ]
    table = f", table {opened[-1]}" if opened and opened[-1] else ""
    shown = [lines[place] if place < len(lines) else "(nothing)" for lines in (old, new)]
    return [f"{name}:{place + 1}{table}: {shown[0]!r}, but the data say {shown[1]!r}."]


def _loose_tables(text: str) -> list[str]:
    """Return the first lines of tables with numbers that stand outside of marks."""
    plain = _TABLE.sub("", text)
    blocks = re.findall(r"(?:^\|.*\n)+", plain, re.M)
    return [block.splitlines()[0] for block in blocks if re.search(r"\|[ *]*[+-]?\d", block)]


def unclaimed(text: str) -> list[str]:
    """Return the numbers of README's prose that no claim, table or exception covers."""
    for claim in CLAIMS["README.md"]:
        text = claim.blanked(text)
    text = _TABLE.sub("", text)
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)  # examples and commands
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)
    for phrase in NO_MEASUREMENT:
        text = re.sub(r"\s+".join(map(re.escape, phrase.split())), "", text)
    return re.findall(NUMBER, text)


def wrong_citations(load: Load) -> list[str]:
    """Compare what scale.json cites of other measurements with these."""
    training = load("cub200")["speed"]["rows"]["cuda graph (default)"]
    lone = {one["query"]: one for one in load("serve")["loads"] if one["clients"] == 1}
    known = {
        "train_per_gpu": round(training["images_per_second"]),
        "train_epochs": training["epochs"],
        "serve_by_id_ms": round(lone["id"]["p50_ms"], 1),
        "serve_by_upload_ms": round(lone["upload"]["p50_ms"], 1),
    }
    # Of the page, and so of what is carried or measured: ResNet-18, on two cores.
    line = rendered_table("gallery.indexing", load).splitlines()[2].split(" | ")
    known |= {"decode_per_core": float(line[2]) / 2, "index_per_core": float(line[4]) / 2}
    cited = {name: one["value"] for name, one in load("scale")["cited"].items()}
    return [
        f"scale.json: cites {name} {cited.get(name)}, which is {value:g}."
        for name, value in known.items()
        if cited.get(name) != value
    ]


def wrong_cells(root: Path, load: Load) -> list[str]:
    """Compare every cell of the stored tables of `phpq reproduce` with the records of its runs."""
    from phpq.reproduce.store import Store
    from phpq.reproduce.tables import summarise

    folder, found = root / "docs" / "results", list[str]()
    records = Store(folder / _GRID).read_records()
    for path in sorted(folder.glob(f"*-{_GRID}.json")):
        for row in load(path.stem).get("rows", []):
            for bits, cell in row.get("cells", {}).items():
                runs = [records[key] for key in cell["keys"] if key in records]
                learned, floats = row["database"] == "learned", row["searched"] == "float"
                value = "map_float" if floats else "map_learned" if learned else "map"
                known = summarise(runs, value)
                names = ("mean", "std", "seeds", "p1", "best_mean", "seconds", "keys")
                if [cell[name] for name in names] != [known[name] for name in names]:
                    found.append(f"{path.name}: {row['name']} at {bits} bits is not of its cells.")
    return found + _wrong_curves(load(f"pn-curves-{_GRID}"), records)


def _wrong_curves(content: Any, records: Mapping[str, Any]) -> list[str]:
    """Return the curves of the precision of the first N hits that no record has."""
    known = [
        (str(one["bits"]), {n: round(v, 2) for n, v in at.items()})
        for one in records.values()
        if one["seed"] == content["seed"]
        and (at := one.get("precision_at_learned") or one.get("precision_at"))
    ]
    return [
        f"pn-curves-{_GRID}.json: {title} at {bits} bits is of no record."
        for bits, curves in content["precision_at"].items()
        for title, curve in curves.items()
        if (bits, curve) not in known
    ]


def unsourced(root: Path, load: Load) -> list[str]:
    """Return JSON files that say neither commit nor, in carried.json, why; and stale entries."""
    carried, found = load(CARRIED), list[str]()
    for path in sorted((root / "docs" / "results").glob("*.json")):
        content = load(path.stem)
        made = {"commit", "commits", "made"} & set(content)
        if path.stem != CARRIED and not made and path.name not in carried["files"]:
            found.append(f"{path.name}: says neither commit nor source (see carried.json).")
    found += [
        f"{file}.json is there: take {name} out of carried.json."
        for name, (file, _) in LATER.items()
        if name in carried["tables"] and tables.measured(load, file) is not None
    ]
    entries = [*carried["tables"].items(), *carried["values"].items()]
    return found + [f"carried.json: {n} has no source." for n, one in entries if not one["source"]]


def write(root: Path = ROOT) -> list[str]:
    """Rewrite the pages; returns the names of those that changed."""
    load, changed = loader(root), list[str]()
    for page in pages(root):
        wanted = rendered(page, root, load)
        if wanted != page.read_text("utf-8"):
            page.write_text(wanted, "utf-8")
            changed.append(page.relative_to(root).as_posix())
    return changed


def main() -> None:
    """Rewrite, or check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if wrong")
    if not parser.parse_args().check:
        for name in write():
            print(f"{name} rewritten")
    found = problems()
    print("\n".join(found) or "Every number follows from its data.")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
