"""The jars of Apache Kafka, fetched once: `python -m tests.servers.kafka_jars`. Needs Maven and Java."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

KAFKA_VERSION = "4.3.1"  # the last that runs on Java 17 as of its writing
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_POM = f"""\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>servers</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <!-- Says on its standard error why a broker does not start. -->
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""


def jars() -> Path:
    """Tell where they are, or will be: below the user's cache, or where OUTBOX_TEST_KAFKA_JARS says."""
    if chosen := os.environ.get("OUTBOX_TEST_KAFKA_JARS"):
        return Path(chosen)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "faststream-outbox" / f"kafka-{KAFKA_VERSION}"


def fetch(directory: Path) -> None:
    """Have Maven fetch them. The directory appears when it is complete."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as name:
        work = Path(name)
        (work / "pom.xml").write_text(_POM)
        goal = [f"{_PLUGIN}:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={work / 'jars'}"]
        subprocess.run(["mvn", "-q", "-B", "-f", str(work / "pom.xml"), *goal], check=True, timeout=600)
        (work / "jars").rename(directory)


def main() -> str | None:
    directory = jars()
    if directory.is_dir():
        return None
    if missing := [each for each in ("mvn", "java") if not shutil.which(each)]:
        return f"Kafka {KAFKA_VERSION} is not fetched: there is no {' and no '.join(missing)}"
    print(f"Fetching Kafka {KAFKA_VERSION} into {directory} (once)", flush=True)  # noqa: T201  a program's output
    try:
        fetch(directory)
    except (OSError, subprocess.SubprocessError) as error:
        return f"Kafka {KAFKA_VERSION} is not fetched: {error}"
    return None


if __name__ == "__main__":
    sys.exit(main())
