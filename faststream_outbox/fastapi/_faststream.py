"""All that is taken from FastStream's private FastAPI modules; apart, because FastAPI need not be installed."""

from faststream._internal.fastapi.context import Context, ContextRepo, Logger
from faststream._internal.fastapi.router import StreamRouter

__all__ = ["Context", "ContextRepo", "Logger", "StreamRouter"]
