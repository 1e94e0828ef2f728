#!/usr/bin/env bash
# Configures a build folder, unless that was done, and builds targets there.
#   scripts/build.sh FOLDER SANITIZERS TARGET...     SANITIZERS: "", address,undefined or thread
# What is instrumented is compiled by Clang, where there is one: it takes half as long for it as
# GCC, and libFuzzer's harnesses can be linked with it (scripts/fuzz.sh). CXX names another.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 sanitizers=$2
shift 2
if [ -n "$sanitizers" ] && [ -z "${CXX:-}" ]; then
  CXX=$(command -v clang++ || command -v clang++-14 || true)
  [ -z "$CXX" ] || export CXX
fi
# What another compiler instrumented is begun anew: CMake would not change it.
if [ -n "$sanitizers" ] && [ -n "${CXX:-}" ] && [ -f "$folder/CMakeCache.txt" ] &&
  ! grep -q "^CMAKE_CXX_COMPILER:[A-Z]*=.*$(basename "$CXX")\$" "$folder/CMakeCache.txt"; then
  rm -rf "$folder"
fi
mkdir -p "$folder"
if [ ! -f "$folder/CMakeCache.txt" ]; then
  launcher=()
  command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSANITIZE="$sanitizers" \
    -DBALLAST_UNITY=ON "${launcher[@]}" >"$folder/configure.log" 2>&1 ||
    { cat "$folder/configure.log"; exit 1; }
fi
cmake --build "$folder" --target "$@" >"$folder/build.log" 2>&1 ||
  { tail -n 40 "$folder/build.log"; exit 1; }
