#!/usr/bin/env bash
# Resolve constraints.txt anew: the newest versions that pyproject.toml allows.
# Resolved for the oldest Python supported; the versions must also do for the newer ones.
set -euo pipefail
cd "$(dirname "$0")/.."

compile=(scripts/uv.sh pip compile --quiet --no-header --no-annotate --no-emit-index-url --all-extras)
# Not dependencies of the package, but part of the set-up: the installer and the build backends (PySpark has no wheel).
tools=$(printf '%s\n' uv hatchling editables setuptools wheel)
new=$(mktemp)
trap 'rm -f "$new"' EXIT

"${compile[@]}" --python-version 3.11 pyproject.toml - <<<"$tools" >"$new"
for version in 3.12 3.13; do
    more=$("${compile[@]}" --python-version "$version" --only-binary :all: --no-binary pyspark -c "$new" \
        pyproject.toml - <<<"$tools")
    LC_ALL=C sort -u -o "$new" "$new" - <<<"$more"
    echo "resolved for Python $version too"
done
cat "$new" >constraints.txt
