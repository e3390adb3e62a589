"""The table of methods: adding one is a line here and a file in `phpq.methods`. No torch.

All methods share the data, the backbone and the epochs of PHPQ, so that a table compares methods
and not budgets. A recipe holds what a method needs besides: batches of several images per class for
losses over pairs, for instance. Deep methods other than PHPQ spend the first half of their epochs
(CFH a third) on fine-tuning the backbone as a classifier, since in a budget that is enough for PHPQ
their losses hardly begin to learn from ImageNet weights; such a training serves all of them. How
the settings were chosen: docs/decisions/0007-methods.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["shallow", "deep", "fine-grained", "later"]

# Half the batch is twice the steps for the same images.
_FINE_TUNED = ("method.classifier_share=0.5", "training.batch_size=64")
_BY_CLASSES = (*_FINE_TUNED, "training.sampler=classes", "training.images_per_class=4")
_CFH = ("method.classifier_share=0.33",)
_DSH = ("method.options.similar_share=0.1",)
_PQN = ("method.rate_share=0.25", "method.options.scale=80")
_SRLH = ("method.options.triplet=0.3", "method.options.smoothing=0")

_NOT_PUBLIC = "the full text or code is not public; built from the abstract"
_FROM_MEMORY = "its loss is quoted from memory, its settings ours"
_LIGHTER = "ResNet-18 for ResNet-50, and a light block for each part"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A method of the comparison.

    Attributes:
        name: As in `method.name`.
        title: As in the paper's tables.
        kind: Group in the table: shallow, deep, fine-grained, or later than the paper.
        place: Module and class, loaded when the method is built.
        settings: Texts such as "training.sampler=classes".
        reconstruction: Why it is our reconstruction; empty where public text or code was followed.
        learned_database: Whether it also learns codes of the gallery from its labels.
        cost: Time of a training, in trainings of plain hashing; only the order of work uses it.
        needs: Packages without which it cannot be fitted.
    """

    name: str
    title: str
    kind: Kind
    place: str
    settings: tuple[str, ...] = ()
    reconstruction: str = ""
    learned_database: bool = False
    cost: float = 1.0
    needs: tuple[str, ...] = ()


_TABLE = (
    Recipe("lsh", "LSH", "shallow", "phpq.methods.lsh:LSH"),
    Recipe("sh", "SH", "shallow", "phpq.methods.sh:SpectralHashing"),
    Recipe("pq", "PQ", "shallow", "phpq.methods.pq:PQ", needs=("faiss",)),
    Recipe("itq", "ITQ", "shallow", "phpq.methods.itq:ITQ"),
    Recipe("opq", "OPQ", "shallow", "phpq.methods.opq:OPQ", needs=("faiss",)),
    Recipe("dpsh", "DPSH", "deep", "phpq.methods.dpsh:DPSH", _BY_CLASSES),
    Recipe("dth", "DTH", "deep", "phpq.methods.dth:DTH", _BY_CLASSES),
    Recipe("dsh", "DSH", "deep", "phpq.methods.dsh:DSH", (*_BY_CLASSES, *_DSH)),
    Recipe("hashnet", "HashNet", "deep", "phpq.methods.hashnet:HashNet", _BY_CLASSES),
    Recipe("adsh", "ADSH", "deep", "phpq.methods.adsh:ADSH", _FINE_TUNED, learned_database=True),
    Recipe(
        "pqn",
        "PQN",
        "deep",
        "phpq.methods.pqn:PQN",
        (*_BY_CLASSES, *_PQN),
        _FROM_MEMORY,
        cost=1.1,
    ),
    Recipe(
        "fph", "FPH", "fine-grained", "phpq.methods.fph:FPH", _BY_CLASSES, _NOT_PUBLIC, cost=1.1
    ),
    Recipe(
        "srlh",
        "SRLH",
        "fine-grained",
        "phpq.methods.srlh:SRLH",
        (*_BY_CLASSES, *_SRLH),
        _NOT_PUBLIC,
        cost=1.9,
    ),
    Recipe(
        "exchnet",
        "ExchNet",
        "fine-grained",
        "phpq.methods.exchnet:ExchNet",
        _FINE_TUNED,
        _LIGHTER,
        learned_database=True,
        cost=1.1,
    ),
    Recipe(
        "cfh",
        "CFH",
        "fine-grained",
        "phpq.methods.cfh:CFH",
        (*_BY_CLASSES, *_CFH),
        _NOT_PUBLIC,
        cost=1.4,
    ),
    Recipe("orthohash", "OrthoHash", "later", "phpq.methods.orthohash:OrthoHash", _FINE_TUNED),
    Recipe("csq", "CSQ", "later", "phpq.methods.csq:CSQ", _FINE_TUNED),
    Recipe("phpq", "PHPQ", "fine-grained", "phpq.model.network:Network", cost=1.7),
)

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _TABLE}
