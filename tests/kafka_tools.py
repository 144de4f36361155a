"""Kafka's own command-line tools, from Maven Central's jars beside those of the broker."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from pathlib import Path

from livectr.local.kafka import KAFKA_VERSION, broker_jars

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>livectr</groupId><artifactId>tools</artifactId><version>{KAFKA_VERSION}</version>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{KAFKA_VERSION}</version>
  </dependency></dependencies>
</project>
"""


def tool_jars() -> Path:
    """Folder of the tools' jars; Maven fetches them once."""
    home = broker_jars().parent
    libs = home / "tools"
    if not libs.is_dir():
        with tempfile.TemporaryDirectory(dir=home) as scratch:
            (Path(scratch) / "pom.xml").write_text(_POM)
            command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
            subprocess.run([*command, "-DoutputDirectory=tools"], cwd=scratch, check=True, timeout=600)
            with contextlib.suppress(OSError):  # another process was first
                (Path(scratch) / "tools").rename(libs)
    return libs


def described_group(url: str, group: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Topic partition → committed offset, lag: as `kafka-consumer-groups.sh --describe` shows them."""
    main = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    words = ["--bootstrap-server", url.removeprefix("kafka://"), "--describe", "--group", group]
    done = subprocess.run(
        ["java", "-Xmx128m", "-cp", f"{tool_jars()}/*", main, *words],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found = {}
    for line in done.stdout.splitlines():
        columns = line.split()
        if len(columns) >= 6 and columns[0] == group:
            found[columns[1], int(columns[2])] = int(columns[3]), int(columns[5])
    return found
