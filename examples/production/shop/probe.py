"""`python -m shop.probe PORT PATH`: exit with 0 if the path answers well, for images that have no curl."""

import sys
import urllib.error
import urllib.request


def main(port: str, path: str) -> int:
    """Ask this machine, and return the exit status."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{int(port)}{path}", timeout=10):
            return 0
    except (urllib.error.URLError, TimeoutError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
