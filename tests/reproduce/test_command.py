from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from made_up_grids import BIRDS, GRID_METHODS, TINY, Finished, tiny_subject
from phpq.errors import ConfigError, DataError
from phpq.files import write_json
from phpq.reproduce import command
from phpq.reproduce.command import Options, choose_processes, reproduce
from phpq.reproduce.store import Store


def options(folder: Path, **changes: Any) -> Options:
    plain = Options(
        target="table1",
        dataset=BIRDS,
        bits=(16,),
        methods=("orthohash",),
        epochs=2,
        out=folder,
        settings=TINY,
        processes=0,
        device="cpu",
        report=False,
    )
    return dataclasses.replace(plain, **changes)


@pytest.fixture
def copied(finished: Finished, tmp_path: Path) -> Options:
    """Return what asks for a grid whose cells are all there."""
    shutil.copytree(finished.context.store.folder, tmp_path / "copy")
    return options(tmp_path / "copy", methods=GRID_METHODS)


def test_a_grid_goes_on_where_it_stopped(copied: Options, finished: Finished) -> None:
    store, messages = Store(copied.out or Path()), list[str]()
    lines = store.records_path.read_text("utf-8").splitlines(keepends=True)
    kept = [line for line in lines if '"orthohash-' not in line]
    store.records_path.write_text("".join(kept), "utf-8")
    first = reproduce(copied, say=messages.append)
    assert (len(first.ran), len(first.reused)) == (1, len(kept))
    assert set(first.records) == set(finished.result.records)
    second = reproduce(dataclasses.replace(copied, seeds=(0, 1), methods=("orthohash",)), say=print)
    assert (len(second.ran), len(second.reused)) == (1, 1)
    commands = store.read_manifest()["commands"]
    assert [one["cells"] for one in commands] == [1, 1]
    third = reproduce(copied, say=messages.append)
    assert third.ran == []
    assert third.to_dict()["cells"]["reused"] == len(lines)


def test_a_folder_of_version_0_1_0_goes_on(copied: Options, finished: Finished) -> None:
    store, records = Store(copied.out or Path()), finished.result.records
    for key, record in records.items():
        write_json(store.folder / "cells" / f"{key}.json", record)
    store.records_path.unlink()
    told = reproduce(dataclasses.replace(copied, run=False), say=print)
    assert told.records == records
    assert not store.records_path.exists()  # a report changes nothing
    again = reproduce(copied, say=print)
    assert (len(again.ran), len(again.reused)) == (0, len(records))
    assert store.read_records() == records
    assert not list(store.folder.glob("cells/*.json"))


def test_a_report_needs_neither_images_nor_weights(copied: Options) -> None:
    reproduce(copied, say=print)
    changes: dict[str, Any] = {"dataset": "no/such/folder", "weights": "gone.bin"}
    told = dataclasses.replace(copied, run=False, report=True, **changes)
    outcome = reproduce(told, say=print)
    assert outcome.tables["table1"]["missing"] == []
    assert all(page.is_file() for page in outcome.pages)


def test_a_report_on_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no finished cell.*--report-only"):
        reproduce(options(tmp_path, run=False), say=print)


def test_without_jinja_pages_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    lines: list[str] = []
    outcome = reproduce(options(tmp_path, epochs=1, report=True), say=lines.append)
    assert outcome.pages == ()
    assert outcome.plan.seeds == (0,)  # by default, of drawn birds
    assert "jinja2 is not installed" in lines[-1]


def test_a_folder_of_another_grid_is_refused(copied: Options) -> None:
    reproduce(copied, say=print)
    with pytest.raises(ConfigError, match=r"other images.*--out DIR"):
        reproduce(dataclasses.replace(copied, dataset=BIRDS + ",seed=5"), say=print)


def test_typing_errors_show_before_the_data_set_is_opened(tmp_path: Path) -> None:
    nowhere = options(tmp_path, dataset="no/such/folder")
    with pytest.raises(ConfigError, match="Did you mean 'kappa'"):
        reproduce(dataclasses.replace(nowhere, target="kapa"), say=print)
    with pytest.raises(ConfigError, match="Did you mean 'csq'"):
        reproduce(dataclasses.replace(nowhere, methods=("csqq",)), say=print)
    with pytest.raises(DataError):
        reproduce(nowhere, say=print)


def test_cells_at_once_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = tiny_subject()
    for cores, expected in ((1, 1), (2, 2), (64, 4)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        assert choose_processes("cpu", subject) == expected


def test_cells_at_once_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    subject = tiny_subject("training.batch_size=128")
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    for gib, expected in ((4, 1), (17, 2), (20, 3), (140, 8)):
        free = (gib << 30) + 8 * 32 * 3 * 32 * 32
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, free))
        assert choose_processes("cuda", subject) == expected
