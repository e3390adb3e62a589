"""What is wrong in a gallery: copies, doubtful labels, outliers; and what a person decides."""

from typing import TYPE_CHECKING

from phpq._lazy import exports

__all__ = ["Audit", "Decision", "audit_gallery", "decide", "list_decisions", "undo"]

if TYPE_CHECKING:
    from phpq.audit.decisions import Decision, decide, list_decisions, undo
    from phpq.audit.report import Audit, audit_gallery
else:
    __getattr__ = exports(
        __name__,
        {
            "phpq.audit.decisions": "Decision decide list_decisions undo",
            "phpq.audit.report": "Audit audit_gallery",
        },
    )
