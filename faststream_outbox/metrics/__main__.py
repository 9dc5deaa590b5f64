"""`python -m faststream_outbox.metrics dashboard` prints a dashboard of Grafana, `… alerts` rules of Prometheus."""

import argparse
import sys
from importlib.resources import files
from typing import Final

_FILES: Final = {"dashboard": "dashboard.json", "alerts": "alerts.yaml"}


def main() -> None:
    """Print the file that the command line names; both are for the names that PrometheusRecorder has by default."""
    parser = argparse.ArgumentParser(
        prog="python -m faststream_outbox.metrics",
        description="Print a dashboard for Grafana or alert rules for Prometheus, by the names of PrometheusRecorder.",
    )
    parser.add_argument("what", choices=_FILES, help="which of the two to print")
    what: str = parser.parse_args().what
    sys.stdout.write(files("faststream_outbox.metrics").joinpath(_FILES[what]).read_text("utf-8"))


if __name__ == "__main__":
    main()
