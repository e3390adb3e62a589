from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from command_line import phpq, refused
from finished_runs import copy_run
from phpq.cli.search import _share, _told
from phpq.gallery import Gallery
from phpq.hits import Found, Sure
from sure_galleries import sure_model
from tiny_runs import tiny_birds


def test_a_table_for_each_photograph(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    photos = [tmp_path / "one [a].png", tmp_path / "two.png"]
    for number, photo in enumerate(photos):
        tiny_birds().test.read(4 * number).save(photo)
    outcome = phpq("search", run, *photos, "--top-k", "2")
    assert outcome.code == 0, outcome.err
    flat = "".join(outcome.out.split())  # a long path is wrapped, wherever that is
    assert "one[a].png" in flat  # no markup
    assert "two.png" in flat
    assert outcome.out.count("most hits: ") == 2
    content = phpq("search", run, *photos, "--top-k", "2", "--json").json()
    for query in content["queries"]:
        assert (
            f"most hits: {query['verdict']['label']} ({query['verdict']['share']:.0%})"
            in outcome.out
        )
        assert len(query["hits"]) == 2


def test_a_model_that_knows_its_doubt_says_what_is_sure(tmp_path: Path) -> None:
    run, photo = copy_run(tmp_path / "run"), tmp_path / "one.png"
    tiny_birds().test.read(0).save(photo)
    for level, said in ((0, "likely "), (None, "unknown: no name is sure enough")):
        sure_model(run, level)
        outcome = phpq("search", run, photo, "--top-k", "2")
        assert outcome.code == 0, outcome.err
        assert f"\n{said}" in outcome.out
        assert "same kind" in outcome.out
    told = " ".join(phpq("info", run).out.split())
    assert "fitted to 100 images that the model did not learn from; with at most 5% wrong" in told


def test_a_gallery_is_searched_with_filters(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    photo = tmp_path / "one [a].png"
    tiny_birds().test.read(0).save(photo)
    made = Gallery.create(tmp_path / "g", run)
    rows = [
        {"id": f"n{n}", "image": tiny_birds().train.read(n), "label": "ab"[n % 2], "year": n}
        for n in range(6)
    ]
    made.add([*rows, {"id": "plain", "image": tiny_birds().train.read(7)}])
    outcome = phpq("search", tmp_path / "g", photo, photo, "--top-k", "3", "--where", "label = 'a'")
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("one [a].png") == 2
    assert outcome.out.count("most hits: a (100%)") == 2
    assert "year" in outcome.out
    outcome = phpq("search", tmp_path / "g", photo, "--where", "id = 'plain'")
    assert "none of the hits has a label" in outcome.out
    assert "year" not in outcome.out
    outcome = phpq("search", tmp_path / "g", photo, "--where", "year > 100")
    assert "no image passes the filter" in outcome.out
    outcome = phpq("search", tmp_path / "g", photo, "--offset", "90")
    assert "--offset 90 skips all 7 hits" in outcome.out
    content = phpq("search", tmp_path / "g", photo, "--json").json()
    assert content["gallery"] == str(tmp_path / "g")
    (query,) = content["queries"]
    assert [hit["rank"] for hit in query["hits"]] == [1, 2, 3, 4, 5, 6, 7]
    assert "Columns: id" in refused("search", tmp_path / "g", photo, "--where", "x = 1")
    assert "Cannot read the image" in refused("search", tmp_path / "g", tmp_path / "none.png")


def test_why_shows_shares_that_add_up_to_the_score(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    photo = tmp_path / "one.png"
    tiny_birds().test.read(0).save(photo)
    made = Gallery.create(tmp_path / "g", run)
    made.add([{"id": f"n{n}", "image": tiny_birds().train.read(n)} for n in range(5)])
    (query,) = phpq("search", tmp_path / "g", photo, "--why", "--json").json()["queries"]
    assert len(query["hits"]) == 5
    for hit in query["hits"]:
        assert len(hit["shares"]) == made.model.codebooks.num_codebooks
        assert abs(sum(hit["shares"]) - hit["score"]) < 1e-4
    outcome = phpq("search", tmp_path / "g", photo, "--why", "--top-k", "1")
    assert " ".join(f"{share:+.2f}" for share in query["hits"][0]["shares"]) in outcome.out
    plain = phpq("search", tmp_path / "g", photo, "--json").json()["queries"][0]["hits"]
    assert plain == [{k: v for k, v in hit.items() if k != "shares"} for hit in query["hits"]]
    assert "no codebook has a share" in refused(
        "search", tmp_path / "g", photo, "--why", "--rerank", "10"
    ).replace("\n", " ")
    (query,) = phpq("search", run, photo, "--why", "--json").json()["queries"]  # a run is a gallery
    assert abs(sum(query["hits"][0]["shares"]) - query["hits"][0]["score"]) < 1e-4


def test_an_encoder_that_was_not_exported_has_one_remedy(tmp_path: Path) -> None:
    Gallery.create(tmp_path / "g", copy_run(tmp_path / "run"))
    said = refused("search", tmp_path / "g", "a.jpg", "--runtime", "int8")
    assert said.endswith(f"with: phpq export {tmp_path / 'g' / 'model'} --int8\n")


def test_a_verdict_by_kinds_says_among_which() -> None:
    kinds = (("wren", 0.996), ("owl", 0.0036), ("jay", 0.0004))
    found = Found((), total=9, best=1.0, kinds=kinds)
    assert _told(found, filtered=False) == (
        "wren, over 99% likely if it is one of the kinds that the gallery knows\n"
        "or owl (under 1%), jay (under 1%)"
    )
    assert "one of the kinds that pass the filter\n" in _told(found, filtered=True)
    assert _told(replace(found, kinds=(("wren", 1.0),)), filtered=False) == (
        "wren, the only kind that the gallery knows"
    )
    assert _told(replace(found, kinds=()), filtered=True) == "none of the hits has a label"


def test_what_is_sure_is_said_in_words() -> None:
    kinds = (("wren", 0.9), ("owl", 0.05))
    found = Found((), total=9, best=1.0, kinds=kinds, known=0.8, sure=Sure("wren", 0, 0.72, 0.05))
    assert _told(found, filtered=False) == "likely wren (72%)\nor owl (4%)"
    unknown = replace(found, sure=Sure(None, None, 0.72, 0.025))
    assert _told(unknown, filtered=True) == (
        "unknown, perhaps wren: no name is sure enough (at most 2.5% of names may be wrong; "
        "--wrong-at-most allows more)\n"
        "nearest: wren (72%), owl (4%)"
    )
    less = replace(found, known=0.4, sure=Sure(None, None, 0.36, 0.025))
    assert _told(less, filtered=True).startswith("unknown: no name is sure enough (at most 2.5%")
    family = replace(found, sure=Sure("songbird", 1, 0.97, 0.05))
    assert _told(family, filtered=False) == (
        "likely songbird (97%); the kind is not sure\nnearest: wren (72%), owl (4%)"
    )


@pytest.mark.parametrize("text", ["-1%", "101", "nan", "five", "", "%"])
def test_percentages_are_between_none_and_all(text: str) -> None:
    said = refused("search", "no gallery", "photo.png", f"--wrong-at-most={text}")
    assert "a percentage from 0 to 100" in " ".join(said.split())


def test_percentages_are_read() -> None:
    assert [_share(text) for text in ("5%", "2.5", " 100 % ", "0")] == [0.05, 0.025, 1.0, 0.0]


def test_photos_boxes_and_examples(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    photos = [tmp_path / "one.png", tmp_path / "two.png"]
    for number, photo in enumerate(photos):
        tiny_birds().test.read(4 * number).resize((60, 40)).save(photo)
    made = Gallery.create(tmp_path / "g", run)
    made.add([{"id": f"n{n}", "image": tiny_birds().train.read(n)} for n in range(6)])

    def ids(*words: str | Path) -> list[str]:
        (query,) = phpq("search", tmp_path / "g", *words, "--json").json()["queries"]
        return [hit["id"] for hit in query["hits"]]

    boxes = ("--box", "2,2,30,30", "--box", "whole")
    expected = made.search(photos, box=[(2, 2, 30, 30), None], more=["n1"], less=["n4"])
    found = ids(*photos, "--together", *boxes, "--more", "n1", "--less", "n4")
    assert found == [hit.id for hit in expected]
    assert ids("--more", "n1") == [hit.id for hit in made.search_id("n1")]
    outcome = phpq("search", tmp_path / "g", photos[0], "--box", "auto")
    assert outcome.code == 0, outcome.err
    assert "searching with the box" in outcome.err
    assert " + " in phpq("search", tmp_path / "g", *photos, "--together").out
    apart = phpq("search", tmp_path / "g", *photos, "--less", "n4", "--json").json()["queries"]
    assert [query["total"] for query in apart] == [5, 5]
    cases: tuple[tuple[tuple[str | Path, ...], str], ...] = (
        ((*photos, "--box", "0,0,9,9"), "one box for 2 photos"),
        ((photos[0], "--box", "0,0,99,9"), "not inside the photo"),
        ((photos[0], "--box", "9,9,9,9"), "is empty"),
        ((photos[0], "--box", "here"), "cannot be read"),
        (("--less", "n1"), "only what it is not like"),
        ((), "names nothing"),
        ((photos[0], "--more", "nobody"), "nobody"),
        ((*photos, "--together", "--why"), "--why explains the score of a single image"),
    )
    for words, said in cases:
        assert said in " ".join(refused("search", tmp_path / "g", *words).split())
