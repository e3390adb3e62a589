"""The demo: nothing in; two trained runs, a report and `metrics.json` out, on a CPU in minutes."""

from phpq.demo.run import BITS, FULL, QUICK, DemoResult, DemoSize, run_demo

__all__ = ["BITS", "FULL", "QUICK", "DemoResult", "DemoSize", "run_demo"]
