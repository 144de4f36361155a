#!/usr/bin/env bash
# Tests and measures LiveCTR on the GPU of this machine: bench/gpu_kit/run.sh OUT [--dry] [--seconds N]
#
# It needs a bare clone, a C++ compiler, and a Python with torch, cupy-cuda13x, numpy, pyarrow, grpcio, protobuf,
# prometheus-client, hypothesis, pytest and pytest-xdist. PYTHON names it, else python3 is taken. Nothing is installed.
# OUT gets report.md, gpu.json, machine.json, events.jsonl and log.txt. `--dry` needs no GPU.
set -euo pipefail
if [ $# -lt 1 ] || [ "${1#-}" != "$1" ]; then
    sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
mkdir -p "$1"
out=$(realpath "$1")
shift
cd "$(dirname "$(realpath "$0")")/../.."
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1
export LIVECTR_KERNELS=$PWD/.gpu_kit${LIVECTR_KERNELS:+:$LIVECTR_KERNELS}
exec "${PYTHON:-python3}" -m bench.gpu_kit "$out" "$@"
