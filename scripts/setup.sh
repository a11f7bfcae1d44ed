#!/usr/bin/env bash
# Build .venv with the pinned versions of everything: scripts/setup.sh <python>
set -euo pipefail
cd "$(dirname "$0")/.."

python=${1:-python3}
minimum=3.11

say() { printf '==> %s\n' "$*"; }

if ! command -v "$python" >/dev/null 2>&1; then
    echo "error: '$python' not found; Holdfast needs Python $minimum or newer." >&2
    echo "       Name another one: make PYTHON=python3.12 setup" >&2
    exit 1
fi
if ! version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null); then
    echo "error: '$python' does not run; Holdfast needs Python $minimum or newer." >&2
    echo "       Name another one: make PYTHON=python3.12 setup" >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "error: '$python' is Python $version; Holdfast needs $minimum or newer." >&2
    echo "       Install one (Debian/Ubuntu: apt install python3.11 python3.11-venv; Fedora: dnf install python3.12;" >&2
    echo "       macOS: brew install python@3.12), then name it: make PYTHON=python3.12 setup" >&2
    exit 1
fi

started=$SECONDS
if [ "$(.venv/bin/python -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)" != "$version" ] ||
    ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    say "creating .venv with Python $version"
    "$python" -m venv --clear .venv
fi

pip=(.venv/bin/python -m pip --disable-pip-version-check -qq)
say "installing the installer (uv)"
"${pip[@]}" install -c constraints.txt uv

[ -t 2 ] && quiet=() || quiet=(--quiet)

say "installing the pinned packages (about $(grep -c == constraints.txt); PySpark alone is almost 500 MB)"
if ! scripts/uv.sh pip install ${quiet[@]+"${quiet[@]}"} --python .venv/bin/python \
    -c constraints.txt --build-constraint constraints.txt -e '.[all,dev]'; then
    say "uv did not get there; trying the same with pip"
    "${pip[@]}" install -c constraints.txt -e '.[all,dev]'
fi
# From a registry that does not say whether a file has changed, uv takes PySpark anew each time, and keeps what it
# unpacked before: 1.3 GB. This removes what nothing refers to any more, unless uv is at work elsewhere.
UV_LOCK_TIMEOUT=1 scripts/uv.sh cache prune --quiet 2>/dev/null || true
say "ready in $((SECONDS - started)) s: .venv/bin/holdfast"
