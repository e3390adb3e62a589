"""Look through the gallery, and decide on what was found: /audit. One audit runs at a time."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from phpq.audit.decisions import decide, left_open, list_decisions, undo
from phpq.audit.report import audit_gallery, keep_report, kept_report
from phpq.errors import PhpqError
from phpq.gallery.store import GalleryStore
from phpq.serve import schemas
from phpq.serve._answers import answer
from phpq.serve._guard import needs_token
from phpq.serve.files import open_to_change
from phpq.serve.routes_gallery import served
from phpq.serve.services import Services
from phpq.serve.settings import MAX_ID

_LOG = logging.getLogger(__name__)
_Name = Annotated[str, Field(min_length=1, max_length=MAX_ID)]
_Label = Annotated[str, Field(min_length=1, max_length=200)]


class FoundCopies(BaseModel):
    """Images that are one picture."""

    key: str
    ids: list[str] = Field(description="The largest picture first: the one to keep.")
    exact: bool = Field(description="Whether their files are equal.")
    labels: list[str | None]


class FoundLabel(BaseModel):
    """A label that its neighbours contradict."""

    key: str
    id: str
    label: str
    suggested: str
    likely: float = Field(description="How likely the suggested one is, by looks alone.")
    wrong: float = Field(description="How likely the label is wrong.")


class FoundOutlier(BaseModel):
    """An image that is like no other."""

    key: str
    id: str
    label: str | None
    nearness: float = Field(description="Mean cosine with the nearest others.")
    usual: float = Field(description="The median of all images.")


class FoundToLabel(BaseModel):
    """An image without a label that would tell most."""

    key: str
    id: str
    suggested: str | None
    likely: float | None


class FoundPair(BaseModel):
    """Two labels whose images are found for each other."""

    key: str
    labels: list[str]
    images: list[int]
    share: float = Field(description="Of the hits of both that have the other label.")


class AuditReport(BaseModel):
    """What was found and not decided yet."""

    version: int = Field(description="Of the gallery that was looked through.")
    images: int
    vectors: str = Field(description="What images were compared by.")
    copies: list[FoundCopies]
    wrong_labels: list[FoundLabel]
    wrong_share: float | None = Field(description="Of all labels, as estimated.")
    outliers: list[FoundOutlier]
    to_label: list[FoundToLabel]
    confused: list[FoundPair]
    notes: list[str] = Field(description="What cannot be told, and why.")


class AuditProgress(BaseModel):
    """How far an audit is."""

    what: str
    done: int
    total: int


class Decided(BaseModel):
    """A decision that can be undone, the last one first."""

    number: int
    key: str
    action: str
    ids: list[str]
    label: str | None
    made: str


class AuditAnswer(BaseModel):
    """Where an audit stands."""

    state: Literal["none", "working", "done", "failed"]
    progress: AuditProgress | None = None
    error: str | None = Field(default=None, description="Why it failed.")
    report: AuditReport | None = Field(default=None, description="Of the last one that ended.")
    decided: int = Field(description="Decisions that were made and not undone.")
    last: Decided | None = Field(default=None, description="What /audit/undo would undo.")


class DecisionRequest(BaseModel, extra="forbid"):
    """A decision on a finding."""

    key: Annotated[str, Field(min_length=1, max_length=64)] = Field(description="Of the finding.")
    action: Literal["keep", "relabel", "delete", "merge", "merge labels"]
    ids: list[_Name] = Field(
        default_factory=list, max_length=1000, description="Of a merge the first stays."
    )
    label: _Label | None = Field(default=None, description="The new one; null takes it away.")
    old_label: _Label | None = Field(default=None, description="Of 'merge labels': goes.")
    yes: bool = Field(default=False, description="Needed for what deletes; files stay.")


class Auditor:
    """Looks through the gallery of a server, in a thread of its own."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = threading.Lock()
        self._working = False
        self._failed: str | None = None
        self._progress = ("beginning", 0, 1)

    def start(self) -> None:
        """Begin, unless one is at work."""
        with self._lock:
            if self._working:
                return
            self._working, self._failed = True, None
            self._progress = ("beginning", 0, 1)
        threading.Thread(target=self._work, name="phpq-audit", daemon=True).start()

    def _work(self) -> None:
        gallery, failed = self._services.gallery, None
        try:
            store = GalleryStore.open(gallery.path)
            found = audit_gallery(
                store, lambda: gallery.models.of(store.manifest), progress=self._tell
            )
            keep_report(store.folder, found)
        except PhpqError as error:
            failed = str(error).replace(str(gallery.path), gallery.name)
        except Exception:
            _LOG.exception("an audit failed")
            failed = "The server made a mistake while it looked; its log tells more."
        with self._lock:
            self._working, self._failed = False, failed

    def _tell(self, what: str, done: int, total: int) -> None:
        self._progress = (what, done, total)

    def describe(self) -> AuditAnswer:
        """Say where it stands."""
        folder = self._services.gallery.path
        with self._lock:
            working, failed, at = self._working, self._failed, self._progress
        past, kept = list_decisions(folder), kept_report(folder)
        report = None if kept is None else AuditReport.model_validate(left_open(kept, past))
        state: Any = "working" if working else "failed" if failed else "done" if kept else "none"
        progress = AuditProgress(what=at[0], done=at[1], total=at[2]) if working else None
        last = Decided.model_validate(past[-1].to_dict()) if past else None
        return AuditAnswer(
            state=state,
            progress=progress,
            error=failed,
            report=report,
            decided=len(past),
            last=last,
        )

    def decide(self, asked: DecisionRequest) -> AuditAnswer:
        """Carry a decision out."""
        given = asked.model_dump(exclude={"key", "action"})
        decide(open_to_change(self._services.gallery.path), asked.key, asked.action, **given)
        return self.describe()

    def undo(self) -> AuditAnswer:
        """Undo the last decision."""
        undo(open_to_change(self._services.gallery.path))
        return self.describe()


def audit_routes(services: Services) -> APIRouter:
    """Return the routes of audits; what changes something needs the token."""
    auditor = Auditor(services)
    router = APIRouter(tags=["audit"], responses=schemas.WRITE_ERRORS)
    changing = [needs_token(services.settings)]

    @router.get("/audit", response_model=AuditAnswer)
    async def look() -> Response:
        """Say what the last audit found and nobody decided yet, and whether one is at work."""
        return answer(await services.searches.run(auditor.describe))

    @router.post("/audit", response_model=AuditAnswer, dependencies=changing)
    async def start() -> Response:
        """Look through the gallery, in the background; GET /audit tells how far it is."""
        auditor.start()
        return answer(await services.searches.run(auditor.describe))

    @router.post("/audit/decisions", response_model=AuditAnswer, dependencies=changing)
    async def decide_on(body: DecisionRequest) -> Response:
        """Keep, relabel, delete or merge; nothing is deleted without a yes."""
        told = await services.writes.run(partial(auditor.decide, body))
        await served(services)
        return answer(told)

    @router.post("/audit/undo", response_model=AuditAnswer, dependencies=changing)
    async def undo_last() -> Response:
        """Undo the last decision."""
        told = await services.writes.run(auditor.undo)
        await served(services)
        return answer(told)

    return router
