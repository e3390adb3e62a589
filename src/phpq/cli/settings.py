"""From options and the environment to settings: the only place that reads environment variables."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from phpq.config import RunConfig


def home() -> Path | None:
    """Return the folder of downloads that PHPQ_HOME names, if it does."""
    named = os.environ.get("PHPQ_HOME")
    return Path(named).expanduser() if named else None


def build_config(
    file: Path | None,
    assignments: Sequence[str],
    *,
    bits: int | None,
    weights: str,
    method: str | None = None,
) -> RunConfig:
    """Put the settings of a run together: the method's, then the file, then the options.

    Args:
        file: A TOML file.
        assignments: Texts such as "training.epochs=10", the last of equal ones counts.
        bits: Length of a code; None leaves it to the file and the assignments.
        weights: Where the backbone starts if neither says so.
        method: Its recipe replaces the defaults; not together with a file, which names its own.
    """
    from phpq.config import load_toml, override, with_bits
    from phpq.errors import ConfigError
    from phpq.recipes import recipe_config

    if file and method:
        raise ConfigError(
            f"--method {method} and --config contradict each other. Set method.name in "
            f"{str(file)!r}."
        )
    config = load_toml(file) if file else recipe_config(method or "phpq")
    if not (file and _names_weights(file)):
        assignments = [f"model.weights={weights}", *assignments]
    config = override(config, assignments)
    return config if bits is None else with_bits(config, bits)


def config_table(config: RunConfig) -> Table:
    """Lay out every setting, a line or two a stage; what is not the default stands out."""
    from rich.table import Table
    from rich.text import Text

    from phpq.config import RunConfig, to_dict

    defaults = to_dict(RunConfig())
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for stage, fields in to_dict(config).items():
        text = Text()
        for name, value in fields.items():
            shown = ",".join(map(_plain, value)) if isinstance(value, list) else _plain(value)
            style = "dim" if value == defaults[stage][name] else "bold cyan"
            # No-break: a name and its value stay on one line.
            text.append(f"{name}={shown}".replace(" ", "\N{NO-BREAK SPACE}"), style).append("  ")
        table.add_row(stage, text)
    return table


def _plain(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _names_weights(file: Path) -> bool:
    return "weights" in tomllib.loads(file.read_text("utf-8")).get("model", {})
