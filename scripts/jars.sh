#!/usr/bin/env bash
# Fetch the jars of one profile of tests/jars/pom.xml and print the directory they are in: scripts/jars.sh s3a
# They are kept outside the checkout, so that a fresh clone finds them. Needs Maven.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=$1
list=tests/jars/pom.xml
cache=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast/jars
place=$cache/$profile-$(sha256sum "$list" | cut -c1-12)

if [ ! -d "$place" ]; then
    if ! command -v mvn >/dev/null 2>&1; then
        echo "error: mvn not found; it fetches the jars of the profile '$profile' in $list." >&2
        echo "       Debian, Ubuntu: sudo apt install maven; Fedora: sudo dnf install maven; macOS: brew install maven" >&2
        exit 1
    fi
    mkdir -p "$cache"
    # Whole or not at all: another run may fetch them at the same time.
    aside=$(mktemp -d "$cache/.$profile-XXXXXX")
    trap 'rm -rf "$aside"' EXIT
    mvn -q -B -ntp -f "$list" -P "$profile" dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$aside/jars" >&2
    mv -T "$aside/jars" "$place" 2>/dev/null || [ -d "$place" ]
fi
echo "$place"
