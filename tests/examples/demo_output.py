"""Reads what the demo printed."""

import re


def counts_in(output: str) -> dict[str, int]:
    lines = re.findall(r"^ +([A-Z][\w ,]*?)  +([\d,]+)(?:  .*)?$", output, re.MULTILINE)
    return {name: int(number.replace(",", "")) for name, number in lines}
