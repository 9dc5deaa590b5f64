"""Every name from FastStream's private FastAPI modules; apart from the others, because FastAPI is optional."""

from faststream._internal.fastapi.context import Context, ContextRepo, Logger
from faststream._internal.fastapi.router import StreamRouter

__all__ = ["Context", "ContextRepo", "Logger", "StreamRouter"]
