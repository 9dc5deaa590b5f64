"""The locks that who publishes under a key holds until the commit: the ids of a key then follow its commits."""

import zlib
from typing import Final

# Keyed publishers lock stripes, not keys: a transaction may publish for tens of thousands of keys, and each lock takes
# a place in a table of fixed size.
_STRIPES: Final = 1024


def lock_class(quoted_table: str) -> int:
    """Give the advisory locks of a table their number: a hash, so that two tables of one database do not meet."""
    return zlib.crc32(quoted_table.encode()) - 2**31


def lock_stripe(queue: str, key: str) -> str:
    """Write which of its locks is a key's."""
    return f"(hashtextextended({queue} || chr(1) || {key}, 0) & {_STRIPES - 1})::int"
