"""The paper's tables and figures again, ours beside theirs: a grid of trainings in, pages out."""

from phpq.reproduce.grid import Cell, GridPlan, make_plan
from phpq.reproduce.rows import TARGETS
from phpq.reproduce.subject import Subject, open_subject

__all__ = ["TARGETS", "Cell", "GridPlan", "Subject", "make_plan", "open_subject"]
