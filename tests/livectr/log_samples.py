"""Small log files in the layouts of Kaggle's data sets, with planted clicks, for tests."""

import random
from pathlib import Path

AVAZU_HEADER = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,"
    "device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
)


def criteo(path: Path, rows: int, seed: int = 1) -> None:
    """Criteo's TSV without header: label, 13 counts, 26 hashes; some blank. C1 decides about the click."""
    pick = random.Random(seed)
    with path.open("w") as file:
        for _ in range(rows):
            counts = [str(pick.randint(-2, 5000)) if pick.random() > 0.2 else "" for _ in range(13)]
            hashes = [f"{pick.randrange(50):08x}" if pick.random() > 0.1 else "" for _ in range(26)]
            clicks = (int(hashes[0], 16) if hashes[0] else 25) / 50
            file.write("\t".join([str(int(pick.random() < clicks)), *counts, *hashes]) + "\n")


def avazu(path: Path, rows: int, seed: int = 1) -> None:
    """Avazu's CSV: ids beyond 64 bits signed, the hour as YYMMDDHH."""
    pick = random.Random(seed)
    with path.open("w") as file:
        file.write(AVAZU_HEADER + "\n")
        for row in range(rows):
            site = pick.randrange(20)
            click = int(pick.random() < site / 20)
            hour = 14102100 + row * 5 // rows
            texts = [f"{site:08x}", "f3845767", "28905ebd", "ecad2386", "7801e8d9", "07d7df22", "a99f214a"]
            texts += [f"{pick.randrange(300):08x}", "44956a24"]
            numbers = [1, 2, 15706, 320, 50, 1722, 0, 35, -1, 79]
            file.write(",".join(map(str, [10**19 + row, click, hour, 1005, 0, *texts, *numbers])) + "\n")
