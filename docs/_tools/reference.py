"""Prepares docstrings and signatures for the reference.

The `Example:` of a docstring becomes a block of Python: griffe takes it for prose, and IDEs show it as it is. A default
that is written as `DEFAULTS.max_workers` becomes the value that it has.
"""

import re
from collections.abc import Iterator
from typing import Any

import griffe

_OPTIONS = "engine.options.SubscriberOptions"
_RELAY = "relay.relay.RELAY_DEFAULTS"


class Reference(griffe.Extension):
    """Rewrites what is shown of the package."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object, before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = with_fences(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Show the values of defaults, when all modules are known."""
        options = {name: each.value for name, each in pkg[_OPTIONS].members.items() if each.is_attribute}
        of_relays = {each.name: each.value for each in pkg[_RELAY].value.arguments}
        for function in _functions(pkg):
            for parameter in function.parameters:
                where, name = str(parameter.default).rpartition(".")[::2]
                if where.endswith("DEFAULTS"):
                    value = (of_relays if where == "RELAY_DEFAULTS" else {}).get(name, options[name])
                    # The field of a dataclass: `field(default_factory=HeadLease)`.
                    made = re.fullmatch(r"field\(default_factory=(\w+)\)", str(value))
                    parameter.default = f"{made[1]}()" if made else value


def _functions(module: griffe.Object) -> Iterator[griffe.Function]:
    for member in module.members.values():
        if member.is_alias:
            continue
        if member.is_function:
            yield member
        elif member.is_module or member.is_class:
            yield from _functions(member)


def with_fences(text: str) -> str:
    """Return a docstring with the lines of each section `Example:` in a fence."""
    lines, shown = text.splitlines(), list[str]()
    while lines:
        line = lines.pop(0)
        shown.append(line)
        if line != "Example:":
            continue
        block = list[str]()
        while lines and (not lines[0].strip() or lines[0].startswith("    ")):
            block.append(lines.pop(0))
        while block and not block[-1].strip():
            block.pop()
        # A title of its own, because griffe would make a box of the word alone.
        shown[-1:] = ["**Example:**", "", "```python", *(each[4:] for each in block), "```", ""]
    return "\n".join(shown)
