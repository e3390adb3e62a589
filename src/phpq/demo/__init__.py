"""The demo: nothing in; two trained runs, a report and `metrics.json` out, on a CPU in minutes."""

from phpq.demo.recipe import BITS, FULL, QUICK, DemoSize
from phpq.demo.run import DemoResult, run_demo

__all__ = ["BITS", "FULL", "QUICK", "DemoResult", "DemoSize", "run_demo"]
