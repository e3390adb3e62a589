"""Bad input through the command line: what was seen, what is allowed, what to do; exit code 2."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from command_line import phpq, refused, tiny_toml
from finished_runs import copy_run
from phpq.data import write_plumage
from phpq.model.weights import write_safetensors
from picture_files import write_classes, write_image
from tiny_runs import tiny_birds, tiny_network


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    return write_plumage(tmp_path / "birds", tiny_birds())


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_toml(tmp_path)


def test_missing_folder(tmp_path: Path) -> None:
    message = refused("train", tmp_path / "absent")
    assert "absent'. Accepted: a folder of class folders" in message
    assert "absent'. Accepted:" in refused("info", tmp_path / "absent")


def test_one_class_only(tmp_path: Path) -> None:
    root = write_classes(tmp_path / "birds", {"owl": 5})
    assert "has one class only ('owl')" in refused("train", root)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--bits", "20"], ["bits=20 is not a multiple of 8", "Use 16, 32, 48 or 64"]),
        (
            ["--bits", "40"],
            ["embedding_dim=1536 is not divisible by quantizer.num_codebooks=5", "Use one of"],
        ),
        (["--set", "quantizer.kappa=300"], ["quantizer.kappa=300", "from 1 to 256"]),
        (
            ["--set", "quantizer.kapa=3"],
            ["Unknown option 'quantizer.kapa'", "Did you mean 'kappa'"],
        ),
        (["--set", "epochs=3"], ["'epochs=3' is not of the form stage.field=value"]),
        (["--epochs", "0"], ["training.epochs=0", "at least 1"]),
        (["--set", "training.optimizer=lion"], ["training.optimizer='lion'", "Known: adam"]),
        (["--config", "no.toml"], ["Cannot read the config 'no.toml'"]),
    ],
)
def test_settings_that_cannot_work(
    options: list[str], parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = refused("train", "plumage", *options)
    for part in parts:
        assert part in message
    assert not (tmp_path / "runs").exists()


def test_toml_with_an_unknown_option_or_not_toml(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[training]\nepoch = 3\n[modle]\n")
    message = refused("train", "plumage", "--config", file)
    assert "Unknown option 'training.epoch'" in message
    assert "Did you mean 'epochs'?" in message
    assert "Unknown option 'modle'" in message  # every fault at once
    file.write_text("[training")
    assert "is not valid TOML" in refused("train", "plumage", "--config", file)


def test_a_class_of_corrupt_images(birds: Path, tiny: Path, tmp_path: Path) -> None:
    name = tiny_birds().class_names[1]
    for path in (birds / "train" / name).iterdir():
        path.write_bytes(path.read_bytes()[:50])
    message = refused("train", birds, "--config", tiny, "--out", tmp_path / "run")
    assert f"'{name}'" in message
    assert "without a readable image" in message
    assert "Cannot read the image 'train/" in message


def test_corrupt_image_refused_by_policy(birds: Path, tiny: Path, tmp_path: Path) -> None:
    victim = birds / tiny_birds().train.ids[3]
    victim.write_text("no image")
    message = refused(
        "train", birds, "--config", tiny, "--out", tmp_path / "run",
        "--set", "data.on_bad_image=refuse",
    )  # fmt: skip
    assert "1 of 24 images" in message
    assert tiny_birds().train.ids[3] in message
    assert "data.on_bad_image=skip" in message


def test_corrupt_weights_of_a_run(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    weights = run / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    photo = write_image(tmp_path / "a.png")
    for arguments in (("evaluate", run), ("search", run, photo)):
        message = refused(*arguments)
        assert "weights.safetensors' is damaged" in message
        assert "Restore it from a copy, or train again." in message
    weights.unlink()
    assert f"phpq train --resume {run}" in refused("evaluate", run)


@pytest.mark.parametrize("text", ["{", '{"format_version": 1}', '{"format_version": 77}', "[]"])
def test_corrupt_config_of_a_run(tmp_path: Path, text: str) -> None:
    run = copy_run(tmp_path / "run")
    (run / "config.json").write_text(text)
    for arguments in (("evaluate", run), ("info", run), ("train", "--resume", run)):
        message = refused(*arguments)
        assert "config.json'" in message
        assert "train again" in message


def test_no_run_where_one_is_named(tmp_path: Path) -> None:
    photo = write_image(tmp_path / "a.png")
    message = refused("evaluate", tmp_path / "no")
    assert "no' is not a model folder: it has no config.json" in message
    assert "`phpq train`" in message
    assert "no' does not exist. Make one with: phpq index" in refused(
        "search", tmp_path / "no", photo
    )
    message = refused("search", tmp_path, photo)
    assert "is not a gallery" in message
    assert "an evaluated run of `phpq train`" in message


def test_wrong_weights_file(birds: Path, tiny: Path, tmp_path: Path) -> None:
    out = ("--config", tiny, "--out", tmp_path / "run", "--weights")
    assert "There is no weights file" in refused("train", birds, *out, tmp_path / "no.safetensors")
    text = tmp_path / "text.safetensors"
    text.write_text("these are no weights")
    assert "not a safetensors file" in refused("train", birds, *out, text)
    other = tmp_path / "other.safetensors"
    write_safetensors(other, tiny_network().transform.state_dict(), {})
    message = refused("train", birds, *out, other)
    assert "does not hold the weights of 'test_resnet'" in message
    pickled = tmp_path / "weights.pth"
    pickled.write_bytes(b"\x80\x04\x95 no")
    assert "cannot be read as a file of weights" in refused("train", birds, *out, pickled)
    assert not (tmp_path / "run").exists()


def test_unknown_backbone(birds: Path, tiny: Path, tmp_path: Path) -> None:
    options = ("--config", tiny, "--out", tmp_path / "run", "--weights", "none", "--backbone")
    assert "Did you mean 'resnet18'" in refused("train", birds, *options, "resnet81")
    message = refused("train", birds, *options, "qqqqqqqq")
    assert "Unknown backbone 'qqqqqqqq'" in message
    assert "resnet50" in message


def test_unreachable_hub_names_the_ways_out(
    birds: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import timm

    create = timm.create_model

    def offline(name: str, *, pretrained: bool = False, **options: object) -> object:
        if pretrained:
            raise FileNotFoundError("no connection")
        return create(name, **options)

    monkeypatch.setattr("timm.create_model", offline)
    message = refused(
        "train", birds, "--config", tiny, "--out", tmp_path / "run", "--weights", "hub"
    )
    assert "could not be fetched from the hub" in message
    assert "--weights FILE" in message
    assert "--weights none" in message


@pytest.mark.parametrize("device", ["warp", "cuda:99", "meta:x"])
def test_unknown_device(birds: Path, tiny: Path, tmp_path: Path, device: str) -> None:
    message = refused("train", birds, "--config", tiny, "--out", tmp_path / "r", "--device", device)
    assert f"Device '{device}' cannot be used" in message
    assert "Use 'auto', 'cpu'" in message


def test_a_folder_that_is_not_empty(birds: Path, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    message = refused("train", birds, "--config", tiny, "--out", tmp_path / "run")
    assert "is not empty. Give a new folder (--out DIR)" in message
    message = refused("train", birds, "--config", tiny, "--out", tiny)
    assert "is a file. Give a folder" in message


def test_resume_of_nothing_and_of_what_is_done(tmp_path: Path) -> None:
    message = refused("train", "--resume", tmp_path)
    assert f"no run to resume in '{tmp_path}'" in message
    run = copy_run(tmp_path / "run")
    assert "is finished; there is nothing to resume" in refused("train", "--resume", run)
    mixed = phpq("train", "--resume", run, "--bits", "16")
    assert mixed.code == 2
    assert "own settings" in mixed.err


def test_a_run_whose_data_is_gone(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    text = (run / "config.json").read_text("utf-8")
    (run / "config.json").write_text(text.replace(tiny_birds().source, "/gone/birds"))
    message = refused("evaluate", run)
    assert "There is no file or folder '/gone/birds'" in message
    assert "giving SOURCE" in message


def test_a_query_that_is_no_image(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    text = tmp_path / "notes.jpg"
    text.write_text("no image")
    assert f"'{text}': it is not an image" in refused("search", run, text)
    assert "there is no such file" in refused("search", run, tmp_path / "absent.jpg", "--json")


def test_search_before_and_after_the_wrong_evaluation(tmp_path: Path) -> None:
    photo = write_image(tmp_path / "a.png")
    run = copy_run(tmp_path / "run", evaluated=False)
    assert f"phpq evaluate {run}" in refused("search", run, photo)
    shutil.copytree(copy_run(tmp_path / "other") / "evaluation", run / "evaluation")
    (run / "evaluation" / "gallery.npz").write_bytes(b"rubbish")
    message = refused("search", run, photo)
    assert "gallery.npz' is damaged" in message
    assert f"phpq evaluate {run}" in message


def test_unknown_download(tmp_path: Path) -> None:
    message = refused("download", "cub2000", "--out", tmp_path)
    assert "Unknown download 'cub2000'. Known: cub200, dogs120. Did you mean 'cub200'?" in message
    assert "Get it with: phpq download cub200" in refused_at_home(tmp_path)


def refused_at_home(home: Path) -> str:
    """Ask for a benchmark that is not at home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHPQ_HOME", str(home))
        message = refused("train", "cub200")
    assert str(home / "cub200") in message
    return message
