"""`--ray` with or without an address: the words of a command line in, with an address out."""

from __future__ import annotations

from collections.abc import Sequence

from phpq.cluster.connection import LOCAL, is_address

OPTION = "--ray"


def with_address(words: Sequence[str]) -> list[str]:
    """Give every bare `--ray` the address "local": options here have a value, or are a flag.

    Args:
        words: As the shell split them. The word after `--ray` is its address if it looks like one;
            what follows `--` is left alone.
    """
    done: list[str] = []
    for place, word in enumerate(words):
        if word == "--":
            return [*done, *words[place:]]
        done.append(word)
        following = words[place + 1] if place + 1 < len(words) else ""
        if word == OPTION and not is_address(following):
            done.append(LOCAL)
    return done
