#!/usr/bin/env bash
# Collects what Ballast is built with into .deps/ (ignored by git, under 40 MB): headers, static
# SQLite and GoogleTest, hwloc, mimalloc, and the CMake modules that find them there. A tree that
# carries it builds where there are a compiler, CMake and perhaps CUDA, but no packages and no
# network:
#   . .deps/flags.sh && cmake -S . -B build "${staged_flags[@]}"
# Needs the Debian packages of scripts/setup.sh --tests on this machine, of the same processor
# family; what is missing is named with its package. CUDA, cuBLASLt and cuDNN are not carried: the
# first two are the toolkit's, and cuDNN is looked for when a training begins.
#   scripts/stage_dependencies.sh [FOLDER]     default: .deps
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:-.deps}
rm -rf "$target"
mkdir -p "$target"/{include,lib,cmake,share}
target=$(cd "$target" && pwd)

# need FILE PACKAGE
need() {
  [ -e "$1" ] && return
  echo "scripts/stage_dependencies.sh: $1 is missing, which is in the Debian package $2; run" \
    "scripts/setup.sh --tests first" >&2
  exit 2
}
libraries=$(dirname "$(gcc -print-file-name=libsqlite3.a)")
for entry in nlohmann:nlohmann-json3-dev CLI:libcli11-dev fmt:libfmt-dev \
  eigen3/Eigen:libeigen3-dev gtest:libgtest-dev hwloc:libhwloc-dev hwloc.h:libhwloc-dev \
  sqlite3.h:libsqlite3-dev; do
  header=${entry%:*}
  need "/usr/include/$header" "${entry#*:}"
  mkdir -p "$target/include/$(dirname "$header")"
  cp -rL "/usr/include/$header" "$target/include/$header"
done
for entry in libsqlite3.a:libsqlite3-dev libgtest.a:libgtest-dev libgtest_main.a:libgtest-dev; do
  library=${entry%:*}
  need "$libraries/$library" "${entry#*:}"
  cp -L "$libraries/$library" "$target/lib/"
done
# What hwloc was configured with differs by processor, so Debian keeps it apart from the headers.
configuration=/usr/include/$(gcc -print-multiarch)/hwloc/autogen/config.h
need "$configuration" libhwloc-dev
mkdir -p "$target/include/hwloc/autogen"
cp -L "$configuration" "$target/include/hwloc/autogen/"
# hwloc is shared, with what it needs beside the C library.
need "$libraries/libhwloc.so.15" libhwloc15
cp -L "$libraries/libhwloc.so.15" "$target/lib/"
ldd "$libraries/libhwloc.so.15" |
  awk '$2 == "=>" && $3 !~ /\/(libc|libm|libpthread|libdl|librt)\.so/ { print $3 }' |
  while read -r used; do cp -L "$used" "$target/lib/"; done
# The allocator of searches is only wanted, as in scripts/setup.sh.
mimalloc=""
if [ -e "$libraries/libmimalloc.so.2" ]; then
  cp -L "$libraries/libmimalloc.so.2" "$target/lib/"
  mimalloc='-DMIMALLOC="$staged/lib/libmimalloc.so.2"'
else
  echo "scripts/stage_dependencies.sh: going on without libmimalloc2.0" >&2
fi
for chart in /usr/share/javascript/chart.js /usr/share/nodejs/chart.js/dist; do
  for name in chart.min.js Chart.min.js; do
    [ -f "$chart/$name" ] && cp -L "$chart/$name" "$target/share/chart.min.js"
  done
done
need "$target/share/chart.min.js" libjs-chart.js

# header_only PACKAGE TARGET DEFINITION: a find module for a library of headers.
header_only() {
  cat >"$target/cmake/Find$1.cmake" <<MODULE
if(NOT TARGET $2)
  add_library($2 INTERFACE IMPORTED)
  set_target_properties($2 PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "\${CMAKE_CURRENT_LIST_DIR}/../include"
    INTERFACE_COMPILE_DEFINITIONS "$3")
endif()
set($1_FOUND TRUE)
MODULE
}
header_only nlohmann_json nlohmann_json::nlohmann_json ""
header_only CLI11 CLI11::CLI11 ""
header_only fmt fmt::fmt FMT_HEADER_ONLY=1
cat >"$target/cmake/Eigen3Config.cmake" <<'MODULE'
if(NOT TARGET Eigen3::Eigen)
  add_library(Eigen3::Eigen INTERFACE IMPORTED)
  set_target_properties(Eigen3::Eigen PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}/../include/eigen3")
endif()
MODULE
cat >"$target/cmake/FindPkgConfig.cmake" <<'MODULE'
# Stands in for pkg-config, which is asked for hwloc alone. A macro sees the folder of its caller,
# so that of this file is kept.
get_filename_component(STAGED_DEPENDENCIES "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
macro(pkg_check_modules prefix)
  if(NOT TARGET PkgConfig::${prefix})
    add_library(PkgConfig::${prefix} SHARED IMPORTED)
    set_target_properties(PkgConfig::${prefix} PROPERTIES
      IMPORTED_LOCATION "${STAGED_DEPENDENCIES}/lib/libhwloc.so.15"
      INTERFACE_INCLUDE_DIRECTORIES "${STAGED_DEPENDENCIES}/include")
  endif()
  set(${prefix}_FOUND TRUE)
endmacro()
set(PkgConfig_FOUND TRUE)
MODULE

# Relative to the tree, which may lie elsewhere when it is built.
where=${target#"$PWD/"}
if [ "${where#/}" = "$where" ]; then where="\$PWD/$where"; fi
cat >"$target/flags.sh" <<FLAGS
# Sourced from the root of the tree: sets staged_flags for cmake. What hwloc needs is found by the
# program's own path only if that is of the older kind, which serves libraries of libraries too.
staged="$where"
staged_flags=(-DCMAKE_MODULE_PATH="\$staged/cmake" -DCMAKE_PREFIX_PATH="\$staged"
  -DEigen3_DIR="\$staged/cmake" -DSQLite3_INCLUDE_DIR="\$staged/include"
  -DSQLite3_LIBRARY="\$staged/lib/libsqlite3.a" -DGTEST_INCLUDE_DIR="\$staged/include"
  -DGTEST_LIBRARY="\$staged/lib/libgtest.a" -DGTEST_MAIN_LIBRARY="\$staged/lib/libgtest_main.a"
  -DCHART_JS="\$staged/share/chart.min.js" -DCMAKE_BUILD_RPATH="\$staged/lib"
  -DCMAKE_EXE_LINKER_FLAGS="-Wl,--disable-new-dtags,-rpath-link,\$staged/lib" $mimalloc)
FLAGS
size=$(du -sm "$target" | cut -f1)
echo "$target: $size MB"
[ "$size" -lt 40 ] || { echo "scripts/stage_dependencies.sh: more than 40 MB" >&2; exit 1; }
