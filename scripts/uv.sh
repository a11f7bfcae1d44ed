#!/usr/bin/env bash
# The uv of .venv. It does not read pip's settings; a mirror or certificate configured for pip should still be used.
set -euo pipefail
cd "$(dirname "$0")/.."

index=${PIP_INDEX_URL:-$(.venv/bin/python -m pip config get global.index-url 2>/dev/null || true)}
[ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
[ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$PIP_CERT}
exec .venv/bin/uv "$@"
