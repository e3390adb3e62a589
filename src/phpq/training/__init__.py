"""Training: the only package that computes gradients of weights."""

from phpq.training.loop import Trainer, run_epochs
from phpq.training.progress import Reporter, TerminalReporter
from phpq.training.run import build_trainer, learn_backbone, start_from_head, train_run

__all__ = [
    "Reporter",
    "TerminalReporter",
    "Trainer",
    "build_trainer",
    "learn_backbone",
    "run_epochs",
    "start_from_head",
    "train_run",
]
