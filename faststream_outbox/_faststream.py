"""Every name from FastStream's private modules, so that a new FastStream can break this file only."""

from typing import Any

from fast_depends.core import CallModel
from faststream._internal._compat import json_loads
from faststream._internal.basic_types import LoggerProto
from faststream._internal.broker import BrokerUsecase
from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.constants import EMPTY, ContentTypes
from faststream._internal.context import Context as ContextField
from faststream._internal.di import FastDependsConfig
from faststream._internal.endpoint.call_wrapper import HandlerCallWrapper
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.proto import PublisherProto
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection, HandlerItem
from faststream._internal.endpoint.subscriber.utils import default_filter
from faststream._internal.endpoint.utils import ParserComposition, process_msg
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream._internal.parser import BatchCodecProto, CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream._internal.testing.broker import EnterType, TestBroker
from faststream._internal.types import BrokerMiddleware, CustomCallable, Filter, IdGenerator, PublisherMiddleware

__all__ = [
    "EMPTY",
    "ArgsContainer",
    "BatchCodecProto",
    "BrokerConfig",
    "BrokerMiddleware",
    "BrokerRouter",
    "BrokerUsecase",
    "CallModel",
    "CallsCollection",
    "CodecProto",
    "ContentTypes",
    "ContextField",
    "CustomCallable",
    "DefaultCodec",
    "DefaultLoggerStorage",
    "EnterType",
    "FastDependsConfig",
    "Filter",
    "HandlerCallWrapper",
    "HandlerItem",
    "IdGenerator",
    "LoggerProto",
    "LoopContext",
    "ParserComposition",
    "ProducerProto",
    "PublisherMiddleware",
    "PublisherProto",
    "PublisherSpecification",
    "PublisherSpecificationConfig",
    "PublisherUsecase",
    "PublisherUsecaseConfig",
    "Registrator",
    "SubscriberRoute",
    "SubscriberSpecification",
    "SubscriberSpecificationConfig",
    "SubscriberUsecase",
    "SubscriberUsecaseConfig",
    "TestBroker",
    "default_filter",
    "get_broker_logger",
    "json_loads",
    "make_logger_state",
    "process_msg",
]


class LoopContext(ContextField):
    """A context lookup that runs on the event loop; FastDepends would run a synchronous one in a thread.

    Example:
        OutboxMessage = Annotated[_OutboxMessage, LoopContext("message")]

    """

    async def use(self, /, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]  # it is awaited
        """Look the name up."""
        return super().use(**kwargs)
