"""Parameter groups, the learning-rate schedule and the averaged weights.

The rate is a pure function of the step, so that resuming needs no scheduler state, and every group
keeps its own share of it. On CUDA the rates are tensors, so that a captured graph sees them change.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from phpq.config import TrainingConfig
from phpq.model.method import Method


def build_optimizer(network: Method, config: TrainingConfig) -> torch.optim.Optimizer:
    """Create the optimizer that the config names: one group for the backbone, one for the head."""
    groups: list[dict[str, Any]] = network.parameter_groups(
        config.learning_rate, config.head_rate_factor
    )
    device = next(network.parameters()).device
    on_cuda = device.type == "cuda"
    for group in groups:
        rate = group["base_rate"]
        group["lr"] = torch.tensor(rate, device=device) if on_cuda else rate
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            groups, momentum=0.9, nesterov=True, weight_decay=config.weight_decay, fused=on_cuda
        )
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, weight_decay=config.weight_decay, fused=on_cuda, capturable=on_cuda)


def rate_factor(step: int, *, steps_per_epoch: int, config: TrainingConfig) -> float:
    """Return the share of the base rate at a step: linear warm-up, then cosine.

    Args:
        step: From 0, over the whole run.
        steps_per_epoch: Turns epochs into steps.
        config: Warm-up, length and final share.
    """
    warmup = min(config.warmup_epochs, config.epochs / 2) * steps_per_epoch
    if step < warmup:
        return (step + 1) / (warmup + 1)
    total = config.epochs * steps_per_epoch
    progress = (step - warmup) / max(1.0, total - warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return config.final_rate + (1 - config.final_rate) * cosine


def set_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Give every group its own base rate times the factor."""
    for group in optimizer.param_groups:
        rate = group["base_rate"] * factor
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


class AveragedWeights:
    """An exponential moving average of a network's weights and buffers.

    Early steps average over fewer weights, so that the start is forgotten soon: the decay at step t
    is min(decay, (1 + t) / (10 + t)).
    """

    def __init__(self, source: nn.Module, target: nn.Module, decay: float) -> None:
        self.decay = decay
        pairs = zip(source.state_dict().values(), target.state_dict().values(), strict=True)
        floating = [(s, t) for s, t in pairs if s.is_floating_point()]
        self.weight = torch.ones((), device=floating[0][0].device)
        # An average is descent with decay: t - w (t - s), with -s for a gradient. The fused kernel
        # of the optimizer reads and writes everything once, and takes w from the device.
        for s, t in floating:
            t.grad = s
        targets = [t for _, t in floating]
        self.mover = torch.optim.SGD(
            targets, lr=self.weight, weight_decay=1.0, maximize=True, fused=True
        )

    def set_step(self, step: int) -> None:
        """Choose the weight of the next update; outside the captured graph."""
        self.weight.fill_(1 - min(self.decay, (1 + step) / (10 + step)))

    def update(self) -> None:
        """Move every target a little towards its source."""
        self.mover.step()
