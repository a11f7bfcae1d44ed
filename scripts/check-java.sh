#!/usr/bin/env bash
# Is there a Java that Spark runs on? Looks where Spark looks: JAVA_HOME first, then PATH.
set -euo pipefail

how_to_get_it() {
    cat >&2 <<'TEXT'
Spark needs Java 17 or 21. One line gets it:
  Debian, Ubuntu   sudo apt install openjdk-17-jre-headless   (or openjdk-21-jre-headless)
  Fedora, RHEL     sudo dnf install java-21-openjdk-headless
  macOS            brew install openjdk@21 && export JAVA_HOME="$(brew --prefix openjdk@21)"
  Windows          wsl --install, then in WSL the line for Ubuntu
  without root     conda install -c conda-forge openjdk=21   (or SDKMAN: sdk install java 21-tem)
An installed one that is not found: export JAVA_HOME=<its directory>
TEXT
    exit 1
}

if [ -n "${JAVA_HOME:-}" ]; then
    java=$JAVA_HOME/bin/java
    found="JAVA_HOME=$JAVA_HOME"
    if [ ! -x "$java" ]; then
        echo "error: JAVA_HOME is set to $JAVA_HOME, but there is no bin/java in it (unset it to use the one on PATH)." >&2
        how_to_get_it
    fi
elif java=$(command -v java); then
    found=$java
else
    echo "error: no Java found (JAVA_HOME is not set, no java on PATH)." >&2
    how_to_get_it
fi

# macOS has a `java` that only says that there is none, hence a failure counts as missing.
if ! output=$("$java" -version 2>&1); then
    echo "error: $java does not run:" >&2
    printf '%s\n' "$output" | head -n 5 | sed 's/^/  /' >&2
    how_to_get_it
fi

# 'openjdk version "17.0.15" ...', 'java version "1.8.0_402"', 'openjdk version "25-ea" ...'
version=$(printf '%s\n' "$output" | sed -n 's/.* version "\([^"]*\)".*/\1/p' | head -n 1)
major=${version#1.}
major=${major%%[!0-9]*}

if [ -z "$major" ]; then
    echo "warning: cannot tell the version of $java; going on. Java 17 and 21 are known to work." >&2
elif [ "$major" -lt 17 ]; then
    echo "error: $found is Java $version, which is too old." >&2
    how_to_get_it
elif [ "$major" -ne 17 ] && [ "$major" -ne 21 ]; then
    echo "warning: $found is Java $version; going on. Java 17 and 21 are known to work." >&2
else
    echo "Java $version ($found)"
fi
