#!/usr/bin/env bash
# Installs the Debian packages that Ballast is built and tested with; does nothing where all of
# them are there. Uses sudo unless it runs as root.
#   scripts/setup.sh [--tests]     with --tests: also what only the tests and benchmarks need
set -euo pipefail

packages=(build-essential cmake ninja-build pkg-config git nlohmann-json3-dev libcli11-dev
  libsqlite3-dev libeigen3-dev libfmt-dev libhwloc-dev libmimalloc-dev libjs-chart.js)
if [ "${1:-}" = --tests ]; then
  packages+=(libgtest-dev libbenchmark-dev clang libclang-rt-14-dev
    g++-aarch64-linux-gnu qemu-user chromium fonts-dejavu-core)
fi

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [ "$state" = "install ok installed" ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

echo "installing ${missing[*]}"
become_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "scripts/setup.sh: run it as root, or install sudo, or install: ${missing[*]}" >&2
    exit 2
  fi
  become_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${become_root[@]}" apt-get update -qq
"${become_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
