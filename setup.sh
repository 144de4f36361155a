#!/usr/bin/env bash
# Everything that `make demo` and `make test` need, on a fresh machine: system parts, a .venv, the packages.
# System parts are installed with apt-get when this user may; otherwise one sentence says what is missing.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")"  # also where the checkout is only linked to

missing=()   # Debian packages that would bring what is not there
have() { command -v "$1" >/dev/null 2>&1; }

have "${CXX:-c++}" || missing+=(g++)
have java || missing+=(openjdk-17-jre-headless)
have mvn || missing+=(maven)
python=""
for candidate in python3.13 python3.12 python3.11 python3; do
    if have "$candidate" && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || missing+=(python3)
if [ -n "$python" ] && ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then missing+=(python3-venv); fi

if [ ${#missing[@]} -gt 0 ]; then
    if have apt-get && [ "$(id -u)" = 0 ]; then
        echo "setup: installing ${missing[*]}"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
    else
        echo "setup: missing on this machine: ${missing[*]} (names of Debian packages); install them and run again." >&2
        exit 2
    fi
fi
if [ -z "$python" ]; then
    python=python3
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "setup: LiveCTR needs Python 3.11 or newer, this machine has $("$python" --version); install a newer one." >&2
        exit 2
    fi
fi

[ -x .venv/bin/python ] || "$python" -m venv .venv
echo "setup: installing packages into .venv (torch is large: a few minutes the first time)"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[local,gpu,dev]'
touch .venv/ready
