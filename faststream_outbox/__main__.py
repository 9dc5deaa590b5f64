"""`python -m faststream_outbox` is `faststream-outbox`."""

from faststream_outbox.cli import main

if __name__ == "__main__":
    main()
