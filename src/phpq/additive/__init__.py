"""Codebooks that a gallery owns: `AdditiveCodebooks`, and `fit_additive`, which makes them."""

from phpq.additive.calibrate import LEAST_IMAGES as LEAST_IMAGES
from phpq.additive.calibrate import LEAST_KINDS as LEAST_KINDS
from phpq.additive.calibrate import calibrated as calibrated
from phpq.additive.chances import levels as levels
from phpq.additive.chances import lineage as lineage
from phpq.additive.codebooks import AdditiveCodebooks as AdditiveCodebooks
from phpq.additive.codebooks import class_means as class_means
from phpq.additive.codebooks import number_labels as number_labels
from phpq.additive.codebooks import softmax as softmax
from phpq.additive.codebooks import unit_rows as unit_rows
from phpq.additive.fit import FIT_ROWS as FIT_ROWS
from phpq.additive.fit import TRUST as TRUST
from phpq.additive.fit import fit_additive as fit_additive
from phpq.additive.fit import k_means as k_means
from phpq.additive.grow import grow_additive as grow_additive
