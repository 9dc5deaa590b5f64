"""`python -m examples.fastapi_app`: run the service on its own Postgres, until Ctrl-C."""

import argparse

import uvicorn

from examples.fastapi_app.app import create_app
from faststream_outbox.embedded import EmbeddedPostgres


def main() -> None:
    """Start Postgres, serve requests, and remove everything at the end."""
    parser = argparse.ArgumentParser(prog="python -m examples.fastapi_app", description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    port = parser.parse_args().port
    with EmbeddedPostgres() as server:
        print(f'curl -X POST localhost:{port}/orders -H "Content-Type: application/json" -d \'{{"product": "tea"}}\'')
        print(f"curl localhost:{port}/orders/1", flush=True)
        uvicorn.run(create_app(server.url("asyncpg")), host="127.0.0.1", port=port)


if __name__ == "__main__":
    main()
