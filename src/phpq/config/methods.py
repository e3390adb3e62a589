"""The table of methods: adding one is a line here and a file in `phpq.methods`. No torch.

All methods share the data, the backbone and the epochs of PHPQ, so that a table compares methods
and not budgets. A recipe holds what a method needs besides, such as batches of several images per
class for losses over pairs. Deep methods other than PHPQ spend the first half of their epochs (CFH
a third) on fine-tuning the backbone as a classifier: from ImageNet weights their losses would
hardly learn in that budget. They share this fine-tuning. How the settings were chosen:
docs/decisions/0007-methods.md.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["shallow", "deep", "fine-grained", "later"]

# Half the batch is twice the steps for the same images.
_FINE_TUNED = ("method.classifier_share=0.5", "training.batch_size=64")
_BY_CLASSES = (*_FINE_TUNED, "training.sampler=classes", "training.images_per_class=4")
_SHALLOW = ("method.features=discriminant",)
_CFH = ("method.classifier_share=0.33",)
_DTH = ("method.options.margin_base=2",)
_DSH = ("method.options.similar_share=0.1",)
_PQN = ("method.rate_share=0.25", "method.options.scale=80")
_SRLH = ("method.options.triplet=0.3", "method.options.smoothing=0")

# PHPQ read literally (arXiv 2109.05206): numbers of its text, then differences between its
# equations and our defaults, then what it leaves open, by common practice.
AS_PRINTED = (
    "model.rho=[3, 2, 1]",  # Implementation Details (i)
    "model.embedding_dim=1536",  # (ii)
    "quantizer.codebook_size=256",  # (iii)
    "quantizer.alpha=16",  # (iv)
    "loss.tau=0.5",  # (v), for CUB-200-2011; a data set that needs another counts more
    "loss.gamma=1",  # (vi)
    "quantizer.kappa=5",  # Component Analysis: "the model performs best under kappa = 5"
    "training.epochs=70",
    "training.batch_size=64",
    "training.optimizer=adam",
    "training.learning_rate=1e-4",
    "training.head_rate_factor=1",  # one rate is given, for all
    "model.pooling=paper",  # GSP: 1 / HW stands outside the root
    "model.embedding_norm=none",  # z = g(h), and is only cut and scaled to unit length
    "loss.embedding_weight=0",  # L = SR-CEL + gamma CL, both of reconstructions
    "loss.label_smoothing=0",  # SR-CEL is a plain cross-entropy
    "loss.positive_mean=paper",  # CL: d+ is divided by |B_c|^2
    "training.ema_decay=0",  # no averaged weights are mentioned
    "quantizer.init=xavier",  # open; as in MeCoQ and HCQ, by the same authors
    "data.eval_size=224",  # open; images are encoded at the size of the training crops
)
# Ours with larger views: better and slower, see docs/decisions/0003.
LARGE_VIEWS = ("data.crop_size=288", "data.eval_size=352")
# Recipes of PHPQ by name, as in --recipe.
READINGS = {"ours": (), "large": LARGE_VIEWS, "paper": AS_PRINTED}

_NOT_PUBLIC = "the full text or code is not public; built from the abstract"
_FROM_MEMORY = "its loss is quoted from memory, its settings ours"
_LIGHTER = "ResNet-18 for ResNet-50, and a light block for each part"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A method of the comparison: the class `title` of the module `phpq.methods.name`."""

    name: str  # as in `method.name`
    title: str  # as in the paper's tables
    kind: Kind  # group in the table
    settings: tuple[str, ...] = ()  # texts such as "training.sampler=classes"
    reconstruction: str = ""  # why it is ours; empty if it follows a public text or code
    learned_database: bool = False  # whether it also learns codes of the gallery from its labels
    cost: float = 1.0  # of a training, relative to plain hashing; only orders the work
    needs: tuple[str, ...] = ()  # packages without which it cannot be fitted

    @property
    def import_path(self) -> str:
        """The `module:Class` that is imported when the method is built."""
        ours = self.name == "phpq"
        return "phpq.model.network:Network" if ours else f"phpq.methods.{self.name}:{self.title}"


_TABLE = (
    Recipe("lsh", "LSH", "shallow", _SHALLOW),
    Recipe("sh", "SH", "shallow", _SHALLOW),
    Recipe("pq", "PQ", "shallow", _SHALLOW, needs=("faiss",)),
    Recipe("itq", "ITQ", "shallow", _SHALLOW),
    Recipe("opq", "OPQ", "shallow", _SHALLOW, needs=("faiss",)),
    Recipe("dpsh", "DPSH", "deep", _BY_CLASSES),
    Recipe("dth", "DTH", "deep", (*_BY_CLASSES, *_DTH)),
    Recipe("dsh", "DSH", "deep", (*_BY_CLASSES, *_DSH)),
    Recipe("hashnet", "HashNet", "deep", _BY_CLASSES),
    Recipe("adsh", "ADSH", "deep", _FINE_TUNED, learned_database=True),
    Recipe("pqn", "PQN", "deep", (*_BY_CLASSES, *_PQN), _FROM_MEMORY, cost=1.1),
    Recipe("fph", "FPH", "fine-grained", _BY_CLASSES, _NOT_PUBLIC, cost=1.1),
    Recipe("srlh", "SRLH", "fine-grained", (*_BY_CLASSES, *_SRLH), _NOT_PUBLIC, cost=1.9),
    Recipe(
        "exchnet", "ExchNet", "fine-grained", _FINE_TUNED, _LIGHTER, learned_database=True, cost=1.1
    ),
    Recipe("cfh", "CFH", "fine-grained", (*_BY_CLASSES, *_CFH), _NOT_PUBLIC, cost=1.4),
    Recipe("orthohash", "OrthoHash", "later", _FINE_TUNED),
    Recipe("csq", "CSQ", "later", _FINE_TUNED),
    Recipe("phpq", "PHPQ", "fine-grained", cost=1.7),
)

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _TABLE}
