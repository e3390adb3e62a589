"""A durable collection of images: a model, its codes on disk and in memory, and search over them.

    gallery = phpq.Gallery.create("birds.gallery", phpq.load("runs/birds-32"))
    gallery.add("birds/")
    for hit in gallery.search("photo.jpg"):
        print(hit.id, hit.score, hit.label)

torch is imported when a model is loaded, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as with_changes
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

import numpy as np
from PIL import Image

from phpq.additive import TRUST
from phpq.codes import Codebooks, FloatArray
from phpq.errors import ConfigError, FormatError
from phpq.gallery.folder import Manifest
from phpq.gallery.models import MODEL, Models, as_model, is_made_by, is_run, manifest_for, run_of
from phpq.gallery.of_run import open_run
from phpq.gallery.queries import Boxes, search_view
from phpq.gallery.records import Record
from phpq.gallery.store import GalleryStore
from phpq.gallery.view import GalleryView, Page, PageOptions
from phpq.gallery.views import Views
from phpq.hits import Found

if TYPE_CHECKING:
    from phpq.gallery.export import FaissGallery
    from phpq.gallery.ingest import AddReport, Engine, Progress
    from phpq.gallery.refit import RefitReport
    from phpq.gallery.repair import VerifyReport
    from phpq.gallery.sources import Source
    from phpq.gallery.upgrade import UpgradeReport
    from phpq.model import Model

Images = str | Path | Image.Image | Sequence[str | Path | Image.Image]
Query = str | Path | Image.Image | Sequence[str | Path | Image.Image] | FloatArray | None
OnBad = Literal["skip", "refuse"]
T = TypeVar("T")


class Gallery:
    """An open gallery; make it with `create` or `open`."""

    def __init__(self, store: GalleryStore, models: Models | Model) -> None:
        self.path = store.folder  # holds the images' rows; of a run, `evaluation/gallery` in it
        self._store = store
        if not isinstance(models, Models):
            models = Models.one(store.folder, models, store.manifest)
        self.models = models
        self._views = Views(store.folder, self.models.of)

    @classmethod
    def create(
        cls,
        path: str | Path,
        model: Model | str | Path,
        *,
        codebooks: Literal["model", "own"] = "model",
        bits: int = 64,
        trust: float = TRUST,
        keep_embeddings: bool | None = None,
    ) -> Gallery:
        """Make an empty gallery in a new or empty folder, with a copy of the model.

        Args:
            path: The folder.
            model: Also what `phpq.load` takes.
            codebooks: Those of the model, for the classes that it has learned; or the gallery's
                own, fitted to its images and labels, for kinds that the model never saw.
            bits: Of a code of the gallery's own codebooks; those of the model have theirs.
            trust: How far the gallery's own codebooks trust labels: 0 not at all, 1 blindly.
            keep_embeddings: Store float16 embeddings too (2 or 4 D bytes per image), for the order
                of equal scores, re-ranking and refits; by default with codebooks of its own.
        """
        loaded = as_model(model)
        keep = keep_embeddings or (keep_embeddings is None and codebooks == "own")
        manifest = manifest_for(loaded, codebooks, bits=bits, trust=trust, keep_embeddings=keep)
        store = GalleryStore.create(
            Path(path), manifest, fill=lambda folder: loaded.save(folder / MODEL)
        )
        return cls(store, loaded)

    @classmethod
    def open(cls, path: str | Path, *, device: str = "auto", runtime: str = "auto") -> Gallery:
        """Open a gallery with its own model, or an evaluated run as the gallery of its images.

        Device and runtime are those of `phpq.load`.

        A `NotTrainedError` if that run was not evaluated yet; a `FormatError` that names the repair
        if it is no gallery, of an unknown version or damaged, or its codes are another model's.
        """
        folder = Path(path)
        if is_run(folder):
            model = as_model(folder, device, runtime)
            return cls(open_run(folder, model), model)
        gallery = cls(GalleryStore.open(folder), Models(folder, device=device, runtime=runtime))
        _ = gallery.model  # raises now if it is damaged
        return gallery

    @property
    def name(self) -> str:
        """The name of its folder, or that of its run."""
        return (run_of(self.path) or self.path).name

    @property
    def model(self) -> Model:
        """The model that made the codes of this version, and embeds queries."""
        return self.models.of(self.manifest)

    @property
    def manifest(self) -> Manifest:
        """The settings of the gallery at this version."""
        return self._store.manifest

    @property
    def codebooks(self) -> Codebooks:
        """The codebooks of its codes: the model's, or its own."""
        return self._store.codebooks(self.model.codebooks)

    def embed(self, images: Images) -> FloatArray:
        """Embed images in the space of the gallery: (N, D) float32."""
        return self.model.embed(images, space=self.manifest.space)

    def __len__(self) -> int:
        return len(self._store)

    def add(  # noqa: PLR0913  by name
        self,
        source: Source,
        *,
        metadata: Mapping[str, Any] | None = None,
        prefix: str = "",
        on_bad: OnBad = "skip",
        batch_size: int = 64,
        progress: Progress | None = None,
        engine: Engine | None = None,
        replace: bool = False,
    ) -> AddReport:
        """Add what is new in a source, and replace what has changed.

        Images are identified by id and by the SHA-256 of their content; a `DataError` if an id
        names another file that still exists (see `prefix` and `upsert`). Memory is bounded, and
        images are committed every few seconds: an interrupted call, made again, goes on where it
        stopped.

        Args:
            source: A folder (ids are paths relative to it, labels its sub-folders), a table or a
                Lance dataset with a column `path` or `image` (and `id`, `label`, metadata), a .txt
                list, URIs of these, paths, mappings with `path` or `image`, `id`, `label` and
                metadata, or a data set.
            metadata: Values for all images, as in {"year": 2024}.
            prefix: Put before every id, to keep two folders with equal file names apart.
            on_bad: An image that cannot be read is skipped and reported, or a `BadImageError`.
            batch_size: Of the model.
            progress: Called with (what is done, images done, images in all).
            engine: Encodes elsewhere, as `phpq.cluster.encoding`; by default in this process.
            replace: Replace images of the same id wherever their files are, as `upsert` does.
        """
        from phpq.gallery.ingest import Ingest
        from phpq.gallery.refit import outgrown

        if on_bad not in ("skip", "refuse"):
            raise ConfigError(f"on_bad={on_bad!r} is not allowed; use 'skip' or 'refuse'.")
        self.refresh()  # the model is that of the newest version
        ingest = Ingest(
            store=self._store,
            model=self.model,
            batch_size=batch_size,
            refuse_bad=on_bad == "refuse",
            refuse_clash=not replace,
            engine=engine,
        )
        report = ingest.run(source, progress, metadata=metadata or {}, prefix=prefix)
        if outgrown(self._store, report.added + report.replaced):
            self.refit(progress=progress)
            report = with_changes(report, refitted=True)
        return report

    def upsert(self, source: Source, **options: Any) -> AddReport:
        """Do as `add`, with its options, and replace images of an id wherever their files are."""
        return self.add(source, replace=True, **options)

    def delete(self, ids: str | Sequence[str] | None = None, *, where: str | None = None) -> int:
        """Delete images by id or by expression, in one commit; returns how many went."""
        return self._store.delete([ids] if isinstance(ids, str) else ids, where=where)

    def prune(self, root: str | Path) -> int:
        """Delete the images that came from the folder `root` and whose files are gone from it."""
        from phpq.gallery.ingest import gone_from

        gone = gone_from(self._store, Path(root))
        return self.delete(gone) if gone else 0

    def search(
        self,
        query: Query = None,
        top_k: int = 10,
        *,
        box: Boxes = None,
        more: Sequence[str] = (),
        less: Sequence[str] = (),
        **options: Unpack[PageOptions],
    ) -> Found:
        """Find the images that look most like one image, or like several of the same thing.

        Best first; equal scores in the order of float scores where embeddings are kept, else in
        order of insertion. The `verdict` is the likeliest kind if the gallery can score kinds, and
        else the most common label of the hits.

        Args:
            query: A file, a PIL image, an embedding (D,); several make one query together.
            top_k: Hits, at least 1; fewer if fewer images fulfil `where`.
            box: The part of the photo to search for: (left, top, right, bottom) in pixels; for
                several photos one each, or None. `phpq.explain.suggest_box` suggests one.
            more: Ids of positive examples, by their kept embeddings or their codes.
            less: Ids of negative examples. With examples, which are never hits, there are no
                probabilities.
            where: A Lance SQL expression over id, uri, label and metadata, as in
                "label = 'sparrow' AND year > 2020", applied before the best are chosen.
            rerank: > 0: order the first `rerank` hits by their float embeddings.
            offset: How many better hits to skip.
            wrong_at_most: Share of the names of verdicts that may be wrong; the lower, the more
                often the verdict is "unknown" (`verdict.sure`).
            options: The last four.
        """
        page = Page(top_k=top_k, **options)
        return self._read(lambda view: search_view(view, page, query, box, more, less))

    def search_many(
        self,
        queries: Sequence[str | Path | Image.Image] | FloatArray,
        top_k: int = 10,
        **options: Unpack[PageOptions],
    ) -> list[Found]:
        """Search for several images at once, or for (Q, D) embeddings; see `search`."""
        page = Page(top_k=top_k, **options)

        def search(view: GalleryView) -> list[Found]:
            if isinstance(queries, np.ndarray):
                return view.search_many(queries, page)
            return view.search_many(view.embed(queries), page)

        return self._read(search)

    def search_id(self, id: str, top_k: int = 10, **options: Unpack[PageOptions]) -> Found:
        """Find the images most like one of the gallery, without itself; see `search`, `more`."""
        return self.search(None, top_k, more=[id], **options)

    def count(self, where: str | None = None) -> int:
        """Count the images, or those that fulfil an expression."""
        return self._store.count(where)

    def get(self, id: str) -> Record:
        """Return one image: uri, label, metadata, code and hash; raises `UnknownNameError`."""
        found = self._store.find([id])
        if id not in found:
            raise self._store.unknown(id)
        return found[id]

    def made_by(self, model: Model | str | Path) -> bool:
        """Say whether a model, or the model of a run, made this gallery's codes."""
        return is_made_by(self.manifest, as_model(model, "cpu"))

    def refresh(self) -> None:
        """Move to the newest version, with the commits of other processes."""
        self._store.refresh()

    def refit(
        self,
        *,
        trust: float | None = None,
        bits: int | None = None,
        progress: Progress | None = None,
    ) -> RefitReport:
        """Fit the codebooks that the gallery owns to its images, and encode all images again.

        From kept embeddings, or else from the images, or from old codes if an image is gone. It is
        one commit; readers see the old version until then. An interrupted call, made again, goes on
        where it stopped. `trust` and `bits` stay unless they are given.
        """
        from phpq.gallery.refit import refit

        return refit(self._store, lambda: self.model, trust=trust, bits=bits, progress=progress)

    def calibrate(self, photos: Source) -> dict[str, Any]:
        """Fit probabilities to labelled photos that the gallery does not hold; returns a summary.

        They replace those fitted with the model, or with codebooks of the gallery's own.
        """
        from phpq.gallery.calibration import calibrate

        return calibrate(self._store, lambda: self.model, photos)

    def set_parents(self, parents: Mapping[str, str] | Sequence[str]) -> dict[str, Any]:
        """Set the parents of labels: {"cep": "Boletus"}, or by columns: ["genus", "family"]."""
        from phpq.gallery.calibration import set_parents

        return set_parents(self._store, parents)

    def upgrade(
        self,
        model: Model | str | Path | None = None,
        *,
        bits: int | None = None,
        drop_missing: bool = False,
        progress: Progress | None = None,
    ) -> UpgradeReport:
        """Give all images codes of another model or another length, under the same ids.

        One commit; the old version stays for `rollback`. Another model embeds the images: a
        `DataError` lists those that are gone, unless `drop_missing`. Called again, it goes on.
        """
        from phpq.gallery.upgrade import upgrade

        new = None if model is None else as_model(model)
        return upgrade(
            self._store, lambda: self.model, new, bits, drop_missing=drop_missing, progress=progress
        )

    def rollback(self) -> UpgradeReport:
        """Go back to the version before the last upgrade, in one commit; again: forward again."""
        from phpq.gallery.upgrade import rollback

        return rollback(self._store)

    def drop_old(self) -> int:
        """Drop the version that `rollback` would go to, and compact; returns the bytes freed."""
        from phpq.gallery.upgrade import drop_old

        return drop_old(self._store)

    def rename_labels(self, names: Mapping[str, str]) -> int:
        """Rename labels, as in {old: new}, in one commit; returns how many images this concerns.

        A label that gets the name of another is merged with it. No image is read.
        """
        from phpq.gallery.labels import rename_labels

        return rename_labels(self._store, names)

    def relabel(self, ids: str | Sequence[str], label: str | None) -> int:
        """Give images another label, or none; returns how many had another. No image is read."""
        from phpq.gallery.labels import relabel

        return relabel(self._store, [ids] if isinstance(ids, str) else ids, label)

    def compact(self) -> int:
        """Merge small files and free the space of deleted images; returns the bytes freed."""
        return self._store.compact()

    def copy(self) -> None:
        """Write a checked copy of the rows, so that later commands start without Lance."""
        self._store.copy()

    def verify(self, *, repair: bool = False) -> VerifyReport:
        """Read and check everything; fix it with `repair`."""
        from phpq.gallery.repair import verify_gallery

        report = verify_gallery(self.path, repair=repair)
        self.refresh()
        return report

    def export(self, path: str | Path) -> int:
        """Write ids, uris, labels, metadata, hashes and codes to a Parquet file."""
        from phpq.gallery.export import export_parquet

        return export_parquet(self._store, Path(path))

    def to_faiss(self) -> FaissGallery:
        """Copy the codes into a `faiss.IndexPQ`, with the ids of its rows."""
        from phpq.gallery.export import to_faiss

        return to_faiss(self._store, self.codebooks)

    def info(self) -> dict[str, Any]:
        """Return size, bits, columns and disk use, ready for JSON."""
        from phpq.gallery.export import describe_store

        return describe_store(self._store)

    def memory_bytes(self) -> int:
        """Return the memory of codes, index and row numbers."""
        return self._read(lambda view: view.memory_bytes())

    def _read(self, work: Callable[[GalleryView], T]) -> T:
        """Call `work` with a view of this version."""
        try:
            return work(self._views.at(self._store.version))
        except FormatError:
            # Another process may have compacted the gallery and removed the version we read.
            self.refresh()
            return work(self._views.at(self._store.version))
