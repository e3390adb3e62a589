from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from made_up_grids import BIRDS, TINY, tiny_subject
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
        methods=("orthohash", "lsh"),
        epochs=1,
        out=folder,
        settings=TINY,
        processes=0,
        device="cpu",
        report=False,
    )
    return dataclasses.replace(plain, **changes)


def test_a_grid_goes_on_where_it_stopped(tmp_path: Path) -> None:
    said: list[str] = []
    first = reproduce(options(tmp_path, methods=("lsh",)), say=said.append)
    assert (len(first.result.ran), len(first.result.reused)) == (4, 0)
    second = reproduce(options(tmp_path), say=said.append)
    assert (len(second.result.ran), len(second.result.reused)) == (1, 4)
    assert set(first.result.records) < set(second.result.records)
    commands = Store(tmp_path).read_manifest()["commands"]
    assert [one["cells"] for one in commands] == [4, 1]
    third = reproduce(options(tmp_path), say=said.append)
    assert third.result.ran == []
    assert third.to_dict()["cells"]["reused"] == 5


def test_a_folder_of_version_0_1_0_goes_on(tmp_path: Path) -> None:
    reproduce(options(tmp_path), say=lambda text: None)
    store = Store(tmp_path)
    records = store.read_records()
    for key, record in records.items():
        write_json(tmp_path / "cells" / f"{key}.json", record)
    store.records_path.unlink()
    told = reproduce(options(tmp_path, run=False), say=lambda text: None)
    assert told.result.records == records
    assert not store.records_path.exists()  # a report changes nothing
    again = reproduce(options(tmp_path), say=lambda text: None)
    assert (len(again.result.ran), len(again.result.reused)) == (0, 5)
    assert store.read_records() == records
    assert not list(tmp_path.glob("cells/*.json"))


def test_a_report_needs_neither_images_nor_weights(tmp_path: Path) -> None:
    reproduce(options(tmp_path), say=lambda text: None)
    outcome = reproduce(
        options(tmp_path, run=False, report=True, dataset="no/such/folder", weights="gone.bin"),
        say=lambda text: None,
    )
    assert len(outcome.result.records) == 5
    assert outcome.tables["table1"]["missing"] == []
    assert all(page.is_file() for page in outcome.pages)


def test_a_report_on_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no finished cell.*--report-only"):
        reproduce(options(tmp_path, run=False), say=lambda text: None)


def test_without_jinja_pages_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    said: list[str] = []
    outcome = reproduce(options(tmp_path, methods=("orthohash",), report=True), say=said.append)
    assert outcome.pages == ()
    assert "jinja2 is not installed" in said[-1]


def test_a_folder_of_another_grid_is_refused(tmp_path: Path) -> None:
    reproduce(options(tmp_path, methods=("orthohash",)), say=lambda text: None)
    with pytest.raises(ConfigError, match=r"other images.*--out DIR"):
        reproduce(options(tmp_path, dataset=BIRDS + ",seed=5"), say=lambda text: None)


def test_typing_errors_show_before_the_data_set_is_opened(tmp_path: Path) -> None:
    nowhere = options(tmp_path, dataset="no/such/folder")
    with pytest.raises(ConfigError, match="Did you mean 'kappa'"):
        reproduce(dataclasses.replace(nowhere, target="kapa"), say=lambda text: None)
    with pytest.raises(ConfigError, match="Did you mean 'csq'"):
        reproduce(dataclasses.replace(nowhere, methods=("csqq",)), say=lambda text: None)
    with pytest.raises(DataError):
        reproduce(nowhere, say=lambda text: None)


def test_seeds_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = reproduce(options(tmp_path, methods=("orthohash",)), say=lambda text: None)
    assert outcome.plan.seeds == (0,)


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
        free = (gib << 30) + subject.pixel_bytes * 8
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, free))
        assert choose_processes("cuda", subject) == expected
