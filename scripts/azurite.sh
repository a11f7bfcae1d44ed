#!/usr/bin/env bash
# Fetch Azurite, the Azure server of the tests, in the version of tests/npm/package.json, and print the path of its program.
# It is kept outside the checkout, so that a fresh clone finds it. Needs Node and npm.
set -euo pipefail
cd "$(dirname "$0")/.."

list=tests/npm/package.json
cache=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast/azurite
place=$cache/$(sha256sum "$list" | cut -c1-12)

if ! command -v node >/dev/null 2>&1 || ! command -v npm >/dev/null 2>&1; then
    echo "error: node or npm not found; the tests on Azure need them for Azurite." >&2
    echo "       Debian, Ubuntu: sudo apt install nodejs npm; Fedora: sudo dnf install nodejs; macOS: brew install node" >&2
    exit 1
fi
if [ ! -d "$place" ]; then
    mkdir -p "$cache"
    # Whole or not at all: another run may fetch it at the same time.
    aside=$(mktemp -d "$cache/.fetched-XXXXXX")
    trap 'rm -rf "$aside"' EXIT
    cp "$list" "$aside/package.json"
    npm install --prefix "$aside" --no-audit --no-fund --no-package-lock --ignore-scripts >&2
    mv -T "$aside" "$place" 2>/dev/null || [ -d "$place" ]
fi
echo "$place/node_modules/.bin/azurite-blob"
