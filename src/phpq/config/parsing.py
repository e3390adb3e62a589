"""Settings in and out: nested plain data, TOML files and `stage.field=value` texts to `RunConfig`.

Each checks the type of every field, refuses unknown keys, and names every fault at once.
"""

import dataclasses
import json
import math
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from phpq.config.stages import RunConfig
from phpq.errors import ConfigError, nearest_hint

CONFIG_FILE = "config.json"  # of a run or model folder


def parse(data: Mapping[str, Any]) -> RunConfig:
    """Build a config from nested plain data; missing fields keep their defaults."""
    faults: list[str] = []
    config = _build(RunConfig, data, "", faults)
    if faults or config is None:
        raise ConfigError("\n".join(faults))
    return typing.cast(RunConfig, config)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a config file as nested plain data, for `parse`."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"Cannot read the config {str(path)!r}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} is not valid TOML: {error}.") from error


def override(config: RunConfig, assignments: Iterable[str]) -> RunConfig:
    """Apply `stage.field=value` strings, each value read by the type of its field."""
    data = to_dict(config)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        stage, dot, name = key.strip().partition(".")
        if not equals or not dot:
            raise ConfigError(
                f"{assignment!r} is not of the form stage.field=value, as in training.epochs=10."
            )
        table = data.setdefault(stage, {})
        if name.startswith("options."):  # which the method itself declares
            table, name = table.setdefault("options", {}), name.removeprefix("options.")
        table[name] = _read_value(text.strip())
    return parse(data)


def to_dict(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Return the config as nested plain data, ready for JSON."""
    data = dataclasses.asdict(config)
    model = data["model"]
    for name in [name for name, value in model.items() if isinstance(value, tuple)]:
        # JSON has no infinity: max pooling is written as a string, and `parse` reads it back.
        model[name] = ["inf" if math.isinf(number) else number for number in model[name]]
    return data


def _build(kind: type, data: Mapping[str, Any], prefix: str, faults: list[str]) -> object | None:
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    before = len(faults)
    for key, value in data.items():
        name = f"{prefix}{key}"
        if key not in hints:
            faults.append(f"Unknown option {name!r}. {nearest_hint(key, hints)}")
        elif dataclasses.is_dataclass(hints[key]):
            if isinstance(value, Mapping):
                values[key] = _build(typing.cast(type, hints[key]), value, f"{name}.", faults)
            else:
                faults.append(f"{name}={value!r} must be a table of options.")
        else:
            values[key] = _typed(hints[key], value, name, faults)
    if len(faults) > before:
        return None
    try:
        return typing.cast(object, kind(**values))
    except ConfigError as error:
        faults.append(str(error))
        return None


def _typed(hint: Any, value: Any, name: str, faults: list[str]) -> Any:
    origin = typing.get_origin(hint)
    if origin is Literal:
        allowed = typing.get_args(hint)
        if value not in allowed:
            faults.append(
                f"{name}={value!r} is not allowed. {nearest_hint(str(value), map(str, allowed))}"
            )
        return value
    if origin is tuple:
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(_typed(typing.get_args(hint)[0], item, name, faults) for item in items)
    if origin is dict:
        if not isinstance(value, Mapping):
            faults.append(f"{name}={value!r} must be a table of numbers.")
            return value
        kind = typing.get_args(hint)[1]
        return {str(k): _typed(kind, item, f"{name}.{k}", faults) for k, item in value.items()}
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if hint is float and (number or value == "inf"):
        return float(value)
    if hint is int and number and float(value).is_integer():
        return int(value)
    if hint in (bool, str) and isinstance(value, hint):
        return value
    faults.append(f"{name}={value!r} must be of type {hint.__name__}.")
    return value


def _read_value(text: str) -> Any:
    words = text.lower() if text in ("True", "False") else text
    if "," in text and not text.startswith("["):
        words = f"[{text}]"
    if words.startswith("["):
        words = words.replace("inf", '"inf"')
    try:
        return json.loads(words)
    except json.JSONDecodeError:
        return text  # as it was given: a path may hold commas
