"""What a text names: how failed rows are retried, where rows are sent, and which shards a node has."""

import re
from inspect import Parameter, signature
from typing import Any, Final
from urllib.parse import parse_qsl

from faststream_outbox.cli.errors import suggest
from faststream_outbox.relay import Route, by_header
from faststream_outbox.retry import ConstantRetry, ExponentialRetry, LinearRetry, NoRetry, RetryStrategyProto
from faststream_outbox.storage.ordering.strategies import MOST_SHARDS

_RETRIES: Final[dict[str, type[RetryStrategyProto]]] = {
    "none": NoRetry,
    "constant": ConstantRetry,
    "linear": LinearRetry,
    "exponential": ExponentialRetry,
}
_SHARDS: Final = re.compile(r"(?P<first>\d+)(-(?P<last>\d+))?", re.ASCII)
_NODE: Final = re.compile(r"(?P<node>\d+)/(?P<nodes>\d+)", re.ASCII)


def make_retry_strategy(text: str) -> RetryStrategyProto:
    """Return the strategy of `name?argument=value&…`; the arguments are those of its class, which checks them."""
    name, _, query = text.partition("?")
    kind = _RETRIES.get(name)
    if kind is None:
        raise ValueError(f"{name!r} is no strategy; {suggest(name, _RETRIES)}")
    arguments = parse_query(query)
    # NoRetry has no `__init__`, and `signature` would show that of `object`.
    parameters = {} if kind is NoRetry else signature(kind).parameters
    for argument in arguments:
        if argument not in parameters:
            known = suggest(argument, parameters) if parameters else "it has none."
            raise ValueError(f"{name} has no argument {argument!r}; {known}")
    missing = [each for each, parameter in parameters.items() if parameter.default is Parameter.empty]
    if lacking := [each for each in missing if each not in arguments]:
        raise ValueError(f"{name} needs {lacking[0]}; write {name}?{'&'.join(f'{each}=1' for each in missing)}.")
    try:
        return kind(**arguments)
    except TypeError as error:  # text where a number should be
        raise ValueError(str(error)) from error


def make_route(destination: str) -> Route:
    """Return the route of a destination: its name, or a function that reads `header:name=allowed,…|default`."""
    if not destination.startswith("header:"):
        return destination
    header, bar, default = destination.removeprefix("header:").partition("|")
    name, equals, allowed = header.partition("=")
    allow = [each.strip() for each in allowed.split(",")] if equals else None
    if not name or (bar and not default):
        raise ValueError(f"{destination!r} is incomplete; write header:name, or header:name|default")
    if allow is not None and not all(allow):
        raise ValueError(f"{destination!r} allows nothing, or an empty name; write header:name=orders,audit-*")
    return by_header(name, default=default or None, allow=allow)


def split_shards(text: str, count: int = MOST_SHARDS) -> list[int]:
    """Return the shards of `0,1,8-11`, or of node 2 of 5 for `2/5`: every fifth of the `count` shards, from shard 2."""
    if of_nodes := _NODE.fullmatch(text):
        return _shards_of_node(int(of_nodes["node"]), int(of_nodes["nodes"]), count)
    shards = set[int]()
    for part in text.split(","):
        found = _SHARDS.fullmatch(part.strip())
        if found is None:
            raise ValueError(f"{text!r} names no shards; write 0,1,8-11, or 2/5 for node 2 of 5, counted from 0.")
        first = int(found["first"])
        last = first if found["last"] is None else int(found["last"])
        if first > last:
            raise ValueError(f"{part.strip()!r} ends before it begins; write {last}-{first}.")
        if last >= count:
            raise ValueError(f"{text!r} names shard {last}, and the {count} shards are 0 to {count - 1}.")
        shards.update(range(first, last + 1))
    return sorted(shards)


def _shards_of_node(node: int, nodes: int, count: int) -> list[int]:
    if node >= nodes:
        right = f"the nodes of {nodes} are 0/{nodes} to {nodes - 1}/{nodes}" if nodes else "write 0/1 for a single node"
        raise ValueError(f"'{node}/{nodes}' is no node: {right}.")
    if nodes > count:
        raise ValueError(f"{nodes} nodes cannot share {count} shards: have at least as many shards as nodes.")
    return list(range(node, count, nodes))


def parse_query(query: str) -> dict[str, Any]:
    """Return the arguments of a query, with numbers and booleans where the text is one."""
    found = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else ()
    return {name: _parse(text) for name, text in found}


def _parse(text: str) -> int | float | bool | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
