"""Additive codebooks that a gallery owns, class scores of any gallery, and their probabilities."""

from phpq.additive.calibrate import MIN_CLASSES as MIN_CLASSES
from phpq.additive.calibrate import MIN_IMAGES as MIN_IMAGES
from phpq.additive.calibrate import calibrate_additive as calibrate_additive
from phpq.additive.calibrate import calibrate_codes as calibrate_codes
from phpq.additive.classifier import CodeClassifier as CodeClassifier
from phpq.additive.classifier import CodewordCounts as CodewordCounts
from phpq.additive.classifier import code_prototypes as code_prototypes
from phpq.additive.classifier import count_codewords as count_codewords
from phpq.additive.codebooks import AdditiveCodebooks as AdditiveCodebooks
from phpq.additive.codebooks import class_means as class_means
from phpq.additive.codebooks import number_labels as number_labels
from phpq.additive.codebooks import unit_rows as unit_rows
from phpq.additive.fit import FIT_ROWS as FIT_ROWS
from phpq.additive.fit import TRUST as TRUST
from phpq.additive.fit import fit_additive as fit_additive
from phpq.additive.fit import k_means as k_means
from phpq.additive.grow import can_grow as can_grow
from phpq.additive.grow import fits_badly as fits_badly
from phpq.additive.grow import grow_additive as grow_additive
from phpq.additive.probabilities import Calibration as Calibration
from phpq.additive.probabilities import ProbabilityModel as ProbabilityModel
from phpq.additive.probabilities import ancestors as ancestors
from phpq.additive.probabilities import parent_levels as parent_levels
from phpq.additive.probabilities import renamed_parents as renamed_parents
from phpq.additive.probabilities import softmax as softmax
