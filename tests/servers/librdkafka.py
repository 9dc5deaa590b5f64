"""The mock cluster inside librdkafka, by its C interface: confluent-kafka ships it, and does not wrap it."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import confluent_kafka

_PRODUCER = 0
_ONLY_BROKER = 1


def library() -> Path | None:
    """Find the library that the wheel brought along."""
    package = Path(confluent_kafka.__file__).parent
    places = (package.parent / "confluent_kafka.libs", package / ".dylibs")
    return next((file for place in places for file in sorted(place.glob("librdkafka*"))), None)


class MockCluster:
    """A Kafka of one broker in this process, whose faults are at our command."""

    def __init__(self) -> None:
        path = library()
        assert path is not None
        self._library = ctypes.CDLL(str(path))
        error = ctypes.create_string_buffer(512)
        configuration = self._call(ctypes.c_void_p, "rd_kafka_conf_new")
        # It complains that it has no server to connect to, which it need not.
        self._call(ctypes.c_int, "rd_kafka_conf_set", ctypes.c_void_p(configuration), b"log_level", b"3", error, 512)
        client = self._call(
            ctypes.c_void_p, "rd_kafka_new", _PRODUCER, ctypes.c_void_p(configuration), error, ctypes.c_size_t(512)
        )
        assert client, error.value
        self._cluster = ctypes.c_void_p(
            self._call(ctypes.c_void_p, "rd_kafka_mock_cluster_new", ctypes.c_void_p(client), 1)
        )

    @property
    def bootstrap_servers(self) -> str:
        return str(self._call(ctypes.c_char_p, "rd_kafka_mock_cluster_bootstraps", self._cluster).decode())

    def create_topic(self, name: str, partitions: int) -> None:
        self._command("topic_create", name.encode(), partitions, 1)

    def set_down(self) -> None:
        """Close all connections, and refuse new ones. What was written remains."""
        self._command("broker_set_down", ctypes.c_int32(_ONLY_BROKER))

    def set_up(self) -> None:
        self._command("broker_set_up", ctypes.c_int32(_ONLY_BROKER))

    def set_delay(self, milliseconds: int) -> None:
        """Answer every request so late."""
        self._command("broker_set_rtt", ctypes.c_int32(_ONLY_BROKER), milliseconds)

    def fail(self, request: int, errors: Sequence[int]) -> None:
        """Answer the next requests of a kind, one each, with these errors."""
        array = (ctypes.c_int * len(errors))(*errors)
        self._call(
            None,
            "rd_kafka_mock_push_request_errors_array",
            self._cluster,
            ctypes.c_int16(request),
            ctypes.c_size_t(len(errors)),
            array,
        )

    def _command(self, name: str, *arguments: object) -> None:
        error = self._call(ctypes.c_int, f"rd_kafka_mock_{name}", self._cluster, *arguments)
        assert error == 0, f"{name}: {error}"

    def _call(self, result: Any, name: str, *arguments: object) -> Any:
        function = self._library[name]
        function.restype = result
        return function(*arguments)
