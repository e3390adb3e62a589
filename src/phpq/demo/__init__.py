"""The demo: nothing in; two trained runs, a report and `metrics.json` out, on a CPU in minutes."""

from phpq.demo.recipe import BITS, FULL, QUICK, Recipe
from phpq.demo.run import DemoResult, run_demo

__all__ = ["BITS", "FULL", "QUICK", "DemoResult", "Recipe", "run_demo"]
