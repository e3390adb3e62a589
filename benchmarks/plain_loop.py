"""The loop that most projects start from: DataLoader workers, torchvision transforms, float32.

The yardstick of `cub200.py speed`: the same network, losses, batch size and optimizer, no more.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torchvision import transforms

from phpq.config import RunConfig
from phpq.data import LabelledImages
from phpq.model import build_method, resolve_device
from phpq.model.network import phpq_loss


class _Images(TorchDataset[tuple[Tensor, int]]):
    def __init__(self, images: LabelledImages, config: RunConfig) -> None:
        self.images = images
        self.transform: Any = transforms.Compose(
            [
                transforms.RandomResizedCrop(
                    config.data.crop_size, scale=(config.data.crop_scale, 1)
                ),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
            ]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.images.read(index)), int(self.images.labels[index])


def synchronize() -> None:
    """Wait for the device, if there is one to wait for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def time_plain_loop(
    images: LabelledImages, config: RunConfig, *, epochs: int, workers: int
) -> dict[str, float]:
    """Train for one warm-up epoch and `epochs` timed ones; returns images/s and seconds."""
    device = resolve_device("auto")
    network = build_method(config, len(images.class_names)).to(device).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=config.training.learning_rate)
    loader = DataLoader(
        _Images(images, config),
        batch_size=config.training.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=True,
        persistent_workers=True,
    )
    started = 0.0
    count = 0
    for epoch in range(epochs + 1):
        if epoch == 1:  # workers are up, cuDNN has chosen
            synchronize()
            started = time.perf_counter()
        for batch, labels in loader:
            output = network(batch.to(device, non_blocking=True))
            target = labels.to(device, non_blocking=True)
            loss = phpq_loss(output, target, config.loss, config.quantizer.num_codebooks).total
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            count += len(batch) if epoch else 0
    synchronize()
    seconds = time.perf_counter() - started
    rate = count / seconds
    return {"images_per_second": rate, "epochs": epochs, "seconds_per_epoch": seconds / epochs}
