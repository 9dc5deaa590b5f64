"""What ends the program with a sentence, and no traceback."""

from typing import ClassVar


class ProgramError(Exception):
    """Something that the program needs is not there."""

    exit_code: ClassVar[int] = 1


class UsageError(ProgramError):
    """Something that the program was told makes no sense."""

    exit_code: ClassVar[int] = 2
