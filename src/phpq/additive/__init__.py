"""Codebooks that a gallery owns, and what galleries of any codebooks know of kinds and doubt."""

from phpq.additive.calibrate import LEAST_IMAGES as LEAST_IMAGES
from phpq.additive.calibrate import LEAST_KINDS as LEAST_KINDS
from phpq.additive.calibrate import calibrated as calibrated
from phpq.additive.calibrate import calibrated_codes as calibrated_codes
from phpq.additive.chances import Calibration as Calibration
from phpq.additive.chances import levels as levels
from phpq.additive.chances import lineage as lineage
from phpq.additive.chances import renamed_parents as renamed_parents
from phpq.additive.chances import softmax as softmax
from phpq.additive.codebooks import AdditiveCodebooks as AdditiveCodebooks
from phpq.additive.codebooks import class_means as class_means
from phpq.additive.codebooks import number_labels as number_labels
from phpq.additive.codebooks import unit_rows as unit_rows
from phpq.additive.fit import FIT_ROWS as FIT_ROWS
from phpq.additive.fit import TRUST as TRUST
from phpq.additive.fit import fit_additive as fit_additive
from phpq.additive.fit import k_means as k_means
from phpq.additive.grow import grow_additive as grow_additive
from phpq.additive.kinds import CodeKinds as CodeKinds
from phpq.additive.kinds import WordCounts as WordCounts
from phpq.additive.kinds import code_kinds as code_kinds
from phpq.additive.kinds import code_prototypes as code_prototypes
from phpq.additive.kinds import count_words as count_words
