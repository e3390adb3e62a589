from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmark_layouts import write_cub200, write_dogs120
from phpq.data import data_home, open_dataset
from phpq.data.sources import LOADERS
from phpq.errors import DataError
from picture_files import write_classes


def test_a_path_is_recognised_by_what_is_there(tmp_path: Path) -> None:
    write_classes(tmp_path / "birds", {"a": 2, "b": 2})
    table = tmp_path / "list.csv"
    rows = [f"birds/{name}/{i}.png,{name}" for name in "ab" for i in range(2)]
    table.write_text("\n".join(["path,label", *rows]))
    write_cub200(tmp_path / "cub" / "CUB_200_2011")
    write_dogs120(tmp_path / "dogs")
    for path, name in (
        ("birds", "birds"),
        ("list.csv", "list"),
        ("cub", "cub200"),
        ("dogs", "dogs120"),
    ):
        assert open_dataset(tmp_path / path).name == name
        assert open_dataset(str(tmp_path / path)).name == name


def test_a_reading_can_be_forced(tmp_path: Path) -> None:
    write_cub200(tmp_path / "cub")
    assert open_dataset(f"cub200:{tmp_path / 'cub'}").name == "cub200"
    forced = open_dataset(f"folder:{tmp_path / 'cub' / 'images'}")
    assert forced.name == "images"
    with pytest.raises(DataError, match="is not Stanford Dogs"):
        open_dataset(f"dogs120:{tmp_path}")


@pytest.mark.parametrize("kind", sorted(LOADERS))
def test_every_loader_explains_a_missing_path(tmp_path: Path, kind: str) -> None:
    with pytest.raises(DataError, match="absent"):
        open_dataset(f"{kind}:{tmp_path / 'absent.csv'}")


def test_downloads_are_found_at_home_and_missed_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'cub200' is not downloaded.*phpq download cub200"):
        open_dataset("cub200", home=tmp_path)
    write_cub200(tmp_path / "cub200" / "CUB_200_2011")
    write_dogs120(tmp_path / "dogs120")
    assert len(open_dataset("cub200", home=tmp_path).train) == 4
    assert len(open_dataset("dogs120", home=tmp_path).train) == 4
    assert data_home(tmp_path) == tmp_path
    assert data_home().parts[-2:] == (".cache", "phpq")


def test_plumage_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = open_dataset("plumage:species=3,images=4,test=2,size=24", seed=5)
    assert (len(dataset.train), len(dataset.test)) == (12, 6)
    assert dataset.train.read(0).size == (24, 24)
    assert len(open_dataset("plumage").train) == 800
    assert open_dataset("plumage", seed=1).class_names != open_dataset("plumage").class_names
    # A folder of that name is reached by a Path, which never is a name.
    write_classes(tmp_path / "plumage", {"a": 2, "b": 2})
    monkeypatch.chdir(tmp_path)
    assert open_dataset(Path("plumage")).class_names == ("a", "b")


@pytest.mark.parametrize("spec", ["no/such/place", "cub2000", "", "http://example.org/x"])
def test_nothing_there_says_what_is_accepted(spec: str) -> None:
    with pytest.raises(DataError, match=r"Accepted: a folder of class folders.*CSV.*plumage"):
        open_dataset(spec)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"notes.txt' is not a data set. Accepted"):
        open_dataset(tmp_path / "notes.txt")


def test_importing_the_package_is_cheap() -> None:
    heavy = "{'torch', 'scipy', 'pyarrow', 'pooch', 'matplotlib'}"
    code = f"import sys, phpq.data; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
