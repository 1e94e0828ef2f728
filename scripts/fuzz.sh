#!/usr/bin/env bash
# Builds every tests/fuzz/*_fuzz.cpp with libFuzzer and the address and undefined-behaviour
# sanitizers, and runs each for some seconds, two at a time.
#   scripts/fuzz.sh [SECONDS, default 60] [FOLDER, default build/fuzz] [NAME ...]
# Exits 1 if any of them found something; the input that did it is left as FOLDER/NAME/crash-*.
# Needs clang++ with libclang-rt (Debian: clang-14 libclang-rt-14-dev); CXX chooses another.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
folder=${2:-build/fuzz}
shift $(($# < 2 ? $# : 2))
jobs=2

export CXX=${CXX:-$(command -v clang++ || command -v clang++-14 || true)}
if [ -z "$CXX" ]; then
  echo "scripts/fuzz.sh: no clang++; install clang-14 and libclang-rt-14-dev, or set CXX" >&2
  exit 2
fi
HWLOC=$(pkg-config --libs hwloc)  # of the kernels' library
export HWLOC
export FLAGS="-std=c++20 -O1 -gline-tables-only -I. -ffp-contract=off -fno-omit-frame-pointer
  -fno-sanitize-recover=all -DBALLAST_SOURCE_DIR=\"$PWD\""
mkdir -p "$folder"

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  for file in tests/fuzz/*_fuzz.cpp; do names+=("$(basename "$file" _fuzz.cpp)"); done
fi

# What the harnesses may call: the libraries of the tests under these sanitizers, and what of the
# backend reads files, in one unit; main and the sanitizers' runtime come with each harness.
scripts/build.sh build/asan address,undefined sim profiles kernels
for source in backend/formats/*.cpp backend/train/{data,random}.cpp; do
  echo "#include \"$source\""
done >"$folder/read.cpp"
"$CXX" $FLAGS -fsanitize=fuzzer-no-link,address,undefined -c "$folder/read.cpp" -o "$folder/read.o"

seed() {  # name: real inputs to begin from
  case $1 in
    config) cp profiles/models/*.json "$2" ;;
    machine) cp profiles/machines/*.json "$2" ;;
    plan) cp profiles/strategies/*.json "$2" ;;
    published) cp profiles/published/*.json profiles/stacks/*.json "$2" ;;
    frameworks)
      echo '{"train_batch_size": 8, "zero_optimization": {"stage": 3}}' >"$2/deepspeed.json"
      echo '--micro-batch-size 1 --recompute-granularity full --bf16' >"$2/megatron.txt"
      ;;
    safetensors) cp tests/data/*.safetensors "$2" 2>/dev/null || true ;;
    *) ;;
  esac
}

run() {
  local name=$1 here=$FOLDER/$1
  "$CXX" $FLAGS -fsanitize=fuzzer,address,undefined "tests/fuzz/${name}_fuzz.cpp" \
    "$FOLDER/read.o" build/asan/lib{profiles,sim,kernels}.a -lfmt -lsqlite3 $HWLOC -o "$here/fuzz"
  if "$here/fuzz" -max_total_time="$SECONDS_EACH" -timeout=10 -rss_limit_mb=2048 \
    -artifact_prefix="$here/" -print_final_stats=1 "$here/corpus" >"$here/log" 2>&1; then
    echo "$name: nothing found ($(awk '/number_of_executed_units/ { print $2 }' "$here/log") runs)"
  else
    echo "$name: FAILED, see $here/log"
    return 1
  fi
}
export -f run
export FOLDER=$folder SECONDS_EACH=$seconds
for name in "${names[@]}"; do
  mkdir -p "$folder/$name/corpus"
  seed "$name" "$folder/$name/corpus"
done
printf '%s\n' "${names[@]}" | xargs -P $jobs -I{} bash -c 'run {}' || exit 1
