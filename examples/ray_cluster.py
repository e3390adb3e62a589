"""Encode images on a Ray cluster: every machine reads and encodes, this process commits.

    pip install 'phpq[ray]'
    python ray_cluster.py RUN IMAGES GALLERY [ADDRESS]

ADDRESS is local (the default: a cluster on this machine), auto, or HOST:6379 of one that runs. The
gallery is the one that `phpq index` alone makes. A run that was interrupted goes on when it is
started again; `phpq index --ray ADDRESS` is the same in one command.
"""

import sys
from pathlib import Path

import phpq
from phpq.cluster.encoding import ray_engine


def main(model: str, images: str, folder: str, address: str = "local") -> int:
    """Put images into a gallery; returns how many it holds."""
    exists = Path(folder).is_dir()
    gallery = phpq.Gallery.open(folder) if exists else phpq.Gallery.create(folder, model)
    with ray_engine(gallery.path, address) as engine:
        gallery.add(images, engine=engine)
    return len(gallery)


if __name__ == "__main__":
    print(main(*sys.argv[1:]), "images")
