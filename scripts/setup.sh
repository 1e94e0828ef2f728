#!/usr/bin/env bash
# Installs the Debian packages that Ballast is built and tested with; does nothing where all of
# them are there. Uses sudo unless it runs as root. Without those that are only wanted, a part is
# slower (the allocator of searches, state on NVMe), left out (ranks that mpirun starts) or skipped
# and named (the tests in a browser).
#   scripts/setup.sh [--tests]     with --tests: also what only the tests and benchmarks need
set -euo pipefail

needed=(build-essential cmake ninja-build pkg-config git nlohmann-json3-dev libcli11-dev
  libsqlite3-dev libeigen3-dev libfmt-dev libhwloc-dev libjs-chart.js)
wanted=(libmimalloc-dev libopenmpi-dev openmpi-bin liburing-dev)
if [ "${1:-}" = --tests ]; then
  needed+=(libgtest-dev libbenchmark-dev clang libclang-rt-14-dev
    g++-aarch64-linux-gnu qemu-user)
  wanted+=(chromium fonts-dejavu-core)
fi

# Those of the packages given that are not installed.
missing_of() {
  local package state
  for package in "$@"; do
    state=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
    [ "$state" = "install ok installed" ] || echo "$package"
  done
}
mapfile -t missing < <(missing_of "${needed[@]}")
mapfile -t missing_wanted < <(missing_of "${wanted[@]}")
[ $((${#missing[@]} + ${#missing_wanted[@]})) -eq 0 ] && exit 0

echo "installing ${missing[*]} ${missing_wanted[*]}"
become_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "scripts/setup.sh: run it as root, or install sudo, or install:" \
      "${missing[*]} ${missing_wanted[*]}" >&2
    [ ${#missing[@]} -eq 0 ] && exit 0
    exit 2
  fi
  become_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
install() { "${become_root[@]}" apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
"${become_root[@]}" apt-get update -qq
[ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
for package in "${missing_wanted[@]}"; do
  install "$package" || echo "scripts/setup.sh: going on without $package" >&2
done
