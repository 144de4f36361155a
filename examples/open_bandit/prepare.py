"""Fetch the six Open Bandit logs (two policies × campaigns all, men, women) with pip, and join them by time.

    python examples/open_bandit/prepare.py DIR

leaves in DIR: logs.csv (60,000 impressions in order of time) and items.csv (the three campaigns' catalogues).
The logs are part of the package obp 0.4.1 (Apache-2.0). Item ids are per campaign in the package: here an
item is campaign number × 1000 + id. Of the user-item affinities, one per item of the catalogue, the shown
item's is kept.
"""

import csv
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "obp==0.4.1"
POLICIES = ("random", "bts")
CAMPAIGNS = ("all", "men", "women")


def download(folder: Path) -> Path:
    """The package's wheel, unpacked; its logs are in obp/dataset/obd/<policy>/<campaign>/."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, "--dest", str(folder), PACKAGE], check=True)
    with zipfile.ZipFile(next(folder.glob("obp-*.whl"))) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith("obp/dataset/obd/")])
    return folder / "obp" / "dataset" / "obd"


def impressions(logs: Path, policy: str, campaign: str) -> list[dict[str, str | int]]:
    """One log's rows with the columns that the pipeline reads."""
    rows: list[dict[str, str | int]] = []
    with (logs / policy / campaign / f"{campaign}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            features = {f"user_feature_{i}": row[f"user_feature_{i}"] for i in range(4)}
            rows.append(
                {
                    "timestamp": row["timestamp"],
                    "user": "-".join(value[:8] for value in features.values()),
                    "item": CAMPAIGNS.index(campaign) * 1000 + int(row["item_id"]),
                    "campaign": campaign,
                    "policy": policy,
                    "position": row["position"],
                    "affinity": row[f"user-item_affinity_{row['item_id']}"],
                    "click": row["click"],
                    **features,
                }
            )
    return rows


def items(logs: Path) -> list[dict[str, str | int]]:
    """The catalogues. The hashes of item features differ between policies; those of `random` are taken."""
    rows: list[dict[str, str | int]] = []
    for number, campaign in enumerate(CAMPAIGNS):
        with (logs / "random" / campaign / "item_context.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                columns = {f"item_feature_{i}": row[f"item_feature_{i}"] for i in range(4)}
                rows.append({"item": number * 1000 + int(row["item_id"]), **columns})
    return rows


def write(path: Path, rows: list[dict[str, str | int]]) -> None:
    """Write rows as CSV, with a line of names."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(f"{path}: {len(rows):,} rows")


def main() -> None:
    """Write the logs to the folder that the command line names."""
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/open_bandit/prepare.py DIR")
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        logs = download(Path(folder))
        rows = [row for p in POLICIES for c in CAMPAIGNS for row in impressions(logs, p, c)]
        write(target / "logs.csv", sorted(rows, key=lambda row: str(row["timestamp"])))
        write(target / "items.csv", items(logs))


if __name__ == "__main__":
    main()
