"""What a person decides on a finding: keep, relabel, delete, merge; each can be undone.

A decision is one change of the gallery. Before it is made, it is recorded in the folder `audit` of
the gallery, together with rows that it deletes. Decisions are undone from the last one backwards.
Nothing is deleted without `yes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from phpq.audit.report import HOME
from phpq.audit.rows import open_store
from phpq.errors import ConfigError, DataError, UnknownNameError
from phpq.files import read_json, write_bytes, write_json
from phpq.gallery.folder import writing
from phpq.gallery.labels import relabel, rename_labels
from phpq.gallery.owned import code_records
from phpq.gallery.records import Record
from phpq.gallery.store import GalleryStore

DECISIONS = "decisions.json"
_LOCK = "audit.lock"
Action = Literal["keep", "relabel", "delete", "merge", "merge labels"]
ACTIONS: tuple[Action, ...] = ("keep", "relabel", "delete", "merge", "merge labels")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision, as it is recorded."""

    number: int  # from 1, in the order they were made
    key: str  # of the finding
    action: Action
    ids: tuple[str, ...]  # images that it changed
    label: str | None = None  # the new one
    had: tuple[str | None, ...] = ()  # earlier labels of the ids
    rows: str = ""  # the file of deleted rows
    made: str = ""  # time in UTC, ISO 8601

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def list_decisions(folder: Path) -> list[Decision]:
    """Return the decisions that were not undone, oldest first."""
    path = folder / HOME / DECISIONS
    if not path.is_file():
        return []
    content = read_json(path, remedy=f"Remove {path}: decisions on findings are then forgotten.")
    return [
        Decision(**{**each, "ids": tuple(each["ids"]), "had": tuple(each["had"])})
        for each in content["decisions"]
    ]


def decide(
    gallery: GalleryStore | str | Path,
    key: str,
    action: Action,
    *,
    ids: Sequence[str] = (),
    label: str | None = None,
    old_label: str | None = None,
    yes: bool = False,
) -> Decision:
    """Carry out a decision on a finding, in one commit.

    Args:
        gallery: Its folder, or the opened store.
        key: Of the finding.
        action: "keep" changes nothing, and the finding is not shown again; "relabel" gives `ids`
            the `label`, None takes theirs away; "delete" deletes `ids`; "merge" keeps the first of
            `ids`, with the label of another if it has none, and deletes the others; "merge labels"
            gives all images of `old_label` the `label`.
        ids: Images.
        label: The new one.
        old_label: Of "merge labels".
        yes: Must be given for what deletes.
    """
    store, names = open_store(gallery), tuple(dict.fromkeys(ids))
    _check(action, names, label, old_label, yes=yes)
    with writing(store.folder, timeout=store.lock_timeout, lock_file=_LOCK):
        past = list_decisions(store.folder)
        number = past[-1].number + 1 if past else 1
        made = datetime.now(UTC).isoformat(timespec="seconds")
        decision = Decision(
            number=number, key=key, action=action, ids=names, label=label, made=made
        )
        store.refresh()
        if action == "merge labels":
            return _merge_labels(store, past, decision, str(old_label))
        if action == "keep":
            return _save(store.folder, past, decision)
        found = store.find(names)
        for name in names:
            if name not in found:
                raise store.unknown(name)
        decision = replace(decision, had=tuple(found[name].label for name in names))
        if action == "relabel":
            decision = _save(store.folder, past, decision)
            relabel(store, names, label)
            return decision
        return _delete_images(store, past, decision)


def undo(gallery: GalleryStore | str | Path) -> Decision:
    """Undo the last decision, in one commit or two; returns it. A `DataError` if it cannot be."""
    store = open_store(gallery)
    with writing(store.folder, timeout=store.lock_timeout, lock_file=_LOCK):
        past = list_decisions(store.folder)
        if not past:
            raise ConfigError("There is no decision to undo.")
        last = past[-1]
        store.refresh()
        if last.rows:
            _restore_images(store, last)
        if last.action != "keep":
            _restore_labels(store, last)
        _write(store.folder, past[:-1])
        if last.rows:
            (store.folder / HOME / last.rows).unlink(missing_ok=True)
        return last


def _check(
    action: Action,
    ids: Sequence[str],
    label: str | None,
    old_label: str | None,
    *,
    yes: bool,
) -> None:
    if action not in ACTIONS:
        raise ConfigError(f"action={action!r} is not allowed; use one of: {', '.join(ACTIONS)}.")
    least = {"relabel": 1, "delete": 1, "merge": 2}.get(action, 0)
    if len(ids) < least:
        raise ConfigError(f"{action!r} needs {least} ids at least; {len(ids)} were given.")
    if action == "merge labels" and not (label and old_label and label != old_label):
        raise ConfigError("'merge labels' needs two labels: old_label, which goes, and label.")
    if action in ("delete", "merge") and not yes:
        count = len(ids) - (action == "merge")
        raise ConfigError(
            f"{action!r} deletes {count} of the gallery's images (their files stay), and nothing "
            "is deleted without a yes: give yes=true."
        )


def _delete_images(store: GalleryStore, past: list[Decision], decision: Decision) -> Decision:
    """Delete images, after their rows are recorded; of a merge the first stays."""
    merge = decision.action == "merge"
    gone = decision.ids[1:] if merge else decision.ids
    label = decision.had[0]
    if merge and label is None:
        label = next((name for name in decision.had if name is not None), None)
    rows = f"{decision.number}.arrow"
    listed = ",".join(map(str, store.numbers_of(gone).tolist()))
    table = store.dataset.to_table(filter=f"row IN ({listed})")
    sink = pa.BufferOutputStream()
    manifest = store.manifest
    about = {"model": manifest.model_fingerprint, "fit": manifest.fit}
    with pa.ipc.new_file(sink, table.schema.with_metadata(about)) as file:
        file.write_table(table.replace_schema_metadata(about))
    (store.folder / HOME).mkdir(exist_ok=True)
    write_bytes(store.folder / HOME / rows, sink.getvalue().to_pybytes())
    decision = _save(
        store.folder, past, replace(decision, rows=rows, label=label if merge else None)
    )
    if merge and label != decision.had[0]:
        relabel(store, decision.ids[:1], label)
    store.delete(gone)
    return decision


def _restore_images(store: GalleryStore, last: Decision) -> None:
    """Append deleted images again, with codes of the newest version."""
    path = store.folder / HOME / last.rows
    try:
        with pa.ipc.open_file(path) as file:
            table = file.read_all()
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"What was deleted cannot be put back: {str(path)!r} cannot be read ({error}). Add "
            f"these images again with phpq index: {', '.join(last.ids[:10])}"
        ) from error
    about = {name.decode(): text.decode() for name, text in (table.schema.metadata or {}).items()}
    manifest = store.manifest
    same = about.get("fit") == manifest.fit
    kept = "embedding" in table.column_names and manifest.keep_embeddings
    if about.get("model") != manifest.model_fingerprint or not (same or kept):
        raise DataError(
            f"The gallery {str(store.folder)!r} was upgraded or refitted since, so that codes of "
            "before tell nothing. Add these images again with phpq index: "
            f"{', '.join(last.ids[:10])}"
        )
    there = store.find(last.ids)
    records = [
        record if same else replace(record, code=np.empty(0, np.uint8))
        for record in _records(store, table if same else _without_codes(store, table))
        if record.id not in there  # added again meanwhile, or never deleted
    ]
    if manifest.owns_codebooks:
        store.put(records, finish=lambda each: code_records(store, each, store))
    else:
        store.put(records)


def _without_codes(store: GalleryStore, table: Any) -> Any:
    """Return a table with codes of zeros, of the length that codes have now."""
    width = store.manifest.num_codebooks
    codes = pa.FixedSizeListArray.from_arrays(np.zeros(table.num_rows * width, np.uint8), width)
    return table.set_column(table.schema.get_field_index("code"), "code", codes)


def _records(store: GalleryStore, table: Any) -> list[Record]:
    """Turn recorded rows into records; columns that were added since are empty."""
    names = set(table.column_names)
    for name in store.metadata_columns:
        if name not in names:
            kind = store.dataset.schema.field(name).type
            table = table.append_column(name, pa.nulls(table.num_rows, kind))
    return store.records(table)


def _restore_labels(store: GalleryStore, last: Decision) -> None:
    """Give images their earlier labels, except for those that were deleted meanwhile."""
    there = store.find(last.ids)
    by_label: dict[str | None, list[str]] = {}
    for name, label in zip(last.ids, last.had, strict=True):
        if name in there and there[name].label != label:
            by_label.setdefault(label, []).append(name)
    for label, names in by_label.items():
        relabel(store, names, label)


def _merge_labels(
    store: GalleryStore, past: list[Decision], decision: Decision, old: str
) -> Decision:
    table = store.dataset.to_table(columns=["id", "label"])
    pairs = zip(table["id"].to_pylist(), table["label"].to_pylist(), strict=True)
    ids = tuple(name for name, label in pairs if label == old)
    if not ids:
        raise UnknownNameError(f"No image of the gallery has the label {old!r}.")
    decision = _save(store.folder, past, replace(decision, ids=ids, had=(old,) * len(ids)))
    rename_labels(store, {old: str(decision.label)})
    return decision


def _save(folder: Path, past: list[Decision], decision: Decision) -> Decision:
    """Record a decision before it is made: undoing one that never happened is harmless."""
    _write(folder, [*past, decision])
    return decision


def _write(folder: Path, content: list[Decision]) -> None:
    (folder / HOME).mkdir(exist_ok=True)
    write_json(folder / HOME / DECISIONS, {"decisions": [each.to_dict() for each in content]})


def left_open(report: Mapping[str, Any], past: Sequence[Decision]) -> dict[str, Any]:
    """Return a report without findings that were decided, and without deleted images."""
    decided = {each.key for each in past}
    gone = {
        name
        for each in past
        if each.rows
        for name in (each.ids[1:] if each.action == "merge" else each.ids)
    }
    content = dict(report)
    for kind in ("wrong_labels", "outliers", "to_label", "confused"):
        content[kind] = [
            each
            for each in report[kind]
            if each["key"] not in decided and each.get("id") not in gone
        ]
    content["copies"] = []
    for group in report["copies"]:
        there = [n for n, name in enumerate(group["ids"]) if name not in gone]
        if group["key"] not in decided and len(there) > 1:
            kept = {name: [group[name][n] for n in there] for name in ("ids", "labels")}
            content["copies"].append({**group, **kept})
    return content
