"""Is `draftmeter probe` as fast as STREAM built with gcc, side by side on this machine?

Both alternate in rounds, so that other load on the machine meets both.
Usage: python bench/probe_vs_stream.py [ROUNDS]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from draftmeter.roofline.bandwidth import probe_cpu

REPEATS = 9


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    source = Path(__file__).with_name("stream_triad.c")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "stream_triad"
        build = ["gcc", "-O3", "-march=native", "-fopenmp", str(source), "-o", str(program)]
        subprocess.run(build, check=True)
        ours, theirs = [], []
        for _ in range(rounds):
            mine = probe_cpu(REPEATS)
            command = [str(program), str(mine.array_bytes // 8), str(REPEATS)]
            env = {"OMP_NUM_THREADS": str(mine.threads)}
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
            ours.append(mine)
            theirs.append(json.loads(done.stdout))
    pairs = list(zip(ours, theirs, strict=True))
    for mine, name in (("read", "read"), ("copy", "copy"), ("add", "triad")):
        found = [(getattr(o, f"{mine}_gb_s"), t[f"{name}_gb_s"]) for o, t in pairs]
        probe, stream = (median(column) for column in zip(*found, strict=True))
        ratio = median(a / b for a, b in found)
        best = max(a for a, _ in found) / max(b for _, b in found)
        print(
            f"probe {mine:4} {probe:7.2f} GB/s  gcc {name:5} {stream:7.2f} GB/s  "
            f"ratio {ratio:.3f} (of the best rounds {best:.3f})"
        )


if __name__ == "__main__":
    main()
