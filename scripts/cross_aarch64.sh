#!/bin/sh
# Builds the kernels and their tests for aarch64 and runs the tests under emulation, with SVE
# vectors of 128, 256 and 512 bits.
#
#   scripts/cross_aarch64.sh [BUILD_FOLDER]
#
# Needs (Debian): g++-aarch64-linux-gnu qemu-user googletest. About a minute on two cores.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$root/build/aarch64}
compiler=aarch64-linux-gnu-g++
googletest=/usr/src/googletest/googletest

for tool in "$compiler" qemu-aarch64; do
  if ! command -v "$tool" > /dev/null; then
    echo "cross_aarch64: skipped, $tool is not installed" \
      "(apt-get install g++-aarch64-linux-gnu qemu-user googletest)"
    exit 0
  fi
done
if [ ! -d "$googletest" ]; then
  echo "cross_aarch64: skipped, $googletest is missing (apt-get install googletest)"
  exit 0
fi
command -v ccache > /dev/null && compiler="ccache $compiler"

mkdir -p "$build"
flags="-std=c++20 -O2 -ffp-contract=off -I$root"
warnings="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror"

# One line a source: object, flags, source.
list_sources() {
  for source in "$root"/kernels/*.cpp "$root"/kernels/reference/*.cpp; do
    echo "kernels_$(basename "$source" .cpp).o $flags $warnings -c $source"
  done
  for source in "$root"/kernels/sve/*.cpp; do
    echo "kernels_$(basename "$source" .cpp).o $flags $warnings -O3 -march=armv8.2-a+sve -c $source"
  done
  for source in "$root"/tests/kernels/*_test.cpp; do
    echo "$(basename "$source" .cpp).o $flags $warnings -I$googletest/include -c $source"
  done
  for source in gtest-all gtest_main; do
    echo "$source.o $flags -I$googletest/include -I$googletest -c $googletest/src/$source.cc"
  done
}

cd "$build"
rm -f ./*.o
list_sources | xargs -P 2 -L 1 sh -c "$compiler -o \"\$@\"" compile
$compiler -static -o test_kernels ./*.o -lpthread

for quads in 1 2 4; do
  echo "cross_aarch64: SVE of $((128 * quads)) bits"
  qemu-aarch64 -cpu max,sve-max-vq=$quads ./test_kernels --gtest_brief=1
done
echo "cross_aarch64: without SVE"
qemu-aarch64 -cpu cortex-a72 ./test_kernels --gtest_brief=1
