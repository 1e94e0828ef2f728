#!/bin/sh
# Builds `ballast` and the tests of the kernels for aarch64 and runs both under emulation: the
# tests with SVE vectors of 128, 256 and 512 bits and without SVE, `ballast predict` for a GH200 on
# Grace's vectors of 128 bits. What it predicts must be, byte for byte, what the native build says.
#
#   scripts/cross_aarch64.sh [BUILD_FOLDER [NATIVE_BALLAST]]     [build/aarch64 build/ballast]
#
# Needs (Debian): g++-aarch64-linux-gnu qemu-user cmake ninja-build, and what a native build needs.
# The arm64 libraries are unpacked into BUILD_FOLDER/sysroot; nothing is installed on the host.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$root/build/aarch64}
native=${2:-$root/build/ballast}
mkdir -p "$build"
build=$(cd "$build" && pwd)
sysroot=$build/sysroot

for tool in aarch64-linux-gnu-g++ qemu-aarch64 ninja; do
  if ! command -v "$tool" > /dev/null; then
    echo "cross_aarch64: skipped, $tool is not installed (scripts/setup.sh --tests installs it)"
    exit 0
  fi
done

# Debian's packages of another architecture, without adding it to the host: that would bind the
# versions of the host's own libraries to theirs. Lists and cache are apart for the same reason.
fetch_sysroot() {
  work=$build/packages
  rm -rf "$work" "$sysroot"
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
  options="-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root
    -o Dir::State::lists=$work/lists -o Dir::State::status=/dev/null -o Dir::Cache=$work/cache"
  # shellcheck disable=SC2086
  (cd "$work" && { apt-get $options update || true; } && apt-get $options download libfmt-dev \
    libfmt9 libgtest-dev libhwloc-dev libhwloc15 libsqlite3-dev libsqlite3-0 libudev1) || return 1
  for package in "$work"/*.deb; do
    dpkg -x "$package" "$sysroot" || return 1
  done
  rm -rf "$work"
  touch "$sysroot/complete"
}
if [ ! -f "$sysroot/complete" ] && ! fetch_sysroot; then
  echo "cross_aarch64: skipped, the host's package sources gave no arm64 packages"
  exit 0
fi

# -O1, as the runs are short; the SVE kernels have flags of their own. Another checkout of the same
# sources finds in the compiler cache, if there is one, what this one compiled.
launcher=
command -v ccache > /dev/null && launcher=ccache
export CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=1
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O1 \
  -DCMAKE_CXX_COMPILER_LAUNCHER=$launcher -DCMAKE_DISABLE_FIND_PACKAGE_benchmark=ON \
  -DCMAKE_TOOLCHAIN_FILE="$root/scripts/aarch64.toolchain.cmake" \
  -DBALLAST_SYSROOT="$sysroot" > "$build/configure.log" ||
  { cat "$build/configure.log"; exit 1; }
cmake --build "$build" --parallel "$(nproc)" --target test_kernels ballast > "$build/build.log" ||
  { tail -n 40 "$build/build.log"; exit 1; }

# emulate CPU PROGRAM ARGUMENT...
emulate() {
  cpu=$1
  shift
  qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$sysroot/usr/lib/aarch64-linux-gnu" \
    -cpu "$cpu" "$@"
}

# test_kernels_on NAME CPU: two at a time, for most of the tests have one thread.
test_kernels_on() {
  code=0
  emulate "$2" "$build/test_kernels" --gtest_brief=1 > "$build/$2.log" 2>&1 || code=$?
  echo "cross_aarch64: $1"
  cat "$build/$2.log"
  return "$code"
}
test_kernels_on "SVE of 128 bits" max,sve-max-vq=1 &
first=$!
test_kernels_on "SVE of 256 bits" max,sve-max-vq=2
wait "$first"
test_kernels_on "SVE of 512 bits" max,sve-max-vq=4 &
first=$!
test_kernels_on "without SVE" cortex-a72
wait "$first"

# One superchip, and four with their links and network; models that an emulator plans in seconds.
compare() {
  name=$1
  shift
  set -- predict "$@" --global-batch 8 --strategy superoffload --zero-stage 2 --json
  echo "cross_aarch64: ballast $*"
  emulate max,sve-max-vq=1 "$build/ballast" "$@" > "$build/$name.json"
  if [ -x "$native" ]; then
    "$native" "$@" > "$build/$name-native.json"
    # What runs a plan is said of the build, and only one of the two may have CUDA.
    for side in "$name" "$name-native"; do
      sed '/^ "runs_on": \[/,/^ \]/d' "$build/$side.json" > "$build/$side-figures.json"
    done
    cmp "$build/$name-native-figures.json" "$build/$name-figures.json"
    echo "cross_aarch64: the same $(wc -c < "$build/$name-figures.json") bytes as the native build"
  else
    echo "cross_aarch64: not compared, there is no native build at $native"
  fi
}
compare one --model gpt2-xl --machine gh200-96gb-480gb
compare four --model llama-3.2-1b --machine jedi-gh200-quad --devices 4
