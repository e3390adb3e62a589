"""The only place where gradients flow."""

from phpq.training.loop import Trainer, train_run
from phpq.training.progress import Reporter, SilentReporter, TerminalReporter

__all__ = ["Reporter", "SilentReporter", "TerminalReporter", "Trainer", "train_run"]
