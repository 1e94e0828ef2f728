#!/usr/bin/env bash
# Sets up, builds everything and runs every test; then the tests again under the address,
# undefined-behaviour and thread sanitizers, the Arm build and a short fuzz, as long as the time
# box lasts. The last line is "N passed, N failed"; exits 1 if anything failed.
#   scripts/test.sh [--quick]      with --quick: the release build and its tests alone
# BALLAST_TEST_MINUTES: the time box [40]. What no longer fits into it is named, not hidden.
set -uo pipefail
cd "$(dirname "$0")/.."
began=$SECONDS
limit=$((${BALLAST_TEST_MINUTES:-40} * 60))
passed=0
failed=0
skipped=0

left() { echo $((limit - (SECONDS - began))); }
say() { printf '\n== %s   (%d s)\n' "$1" $((SECONDS - began)); }
succeed() { passed=$((passed + 1)); }
fail() {
  failed=$((failed + 1))
  echo "FAILED: $1"
}
finish() {
  [ "$skipped" -eq 0 ] || echo "$skipped skipped, each with its reason above"
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
  exit
}

# The time box ends in the middle of a part: that part was not run, which is no failure of it.
out_of_time() {
  echo "not run: the time box ended while $1"
  skipped=$((skipped + 1))
}

# build FOLDER SANITIZERS TARGET...: configures and builds, or counts a failure.
build() {
  timeout "$(left)" scripts/build.sh "$@" && return
  [ $? -eq 124 ] && { out_of_time "building $1"; return 1; }
  fail "building $1"
  return 1
}

# The attribute $1 of the first line of a GoogleTest XML that has it.
attribute() { sed -n "/.*<testsuites/ { s/.* $1=\"\([0-9]*\)\".*/\1/p; q }" "$2"; }

# The last lines that a test program wrote before it died.
last_words() {
  sed -n "/Test *#[0-9]*: $1 \./,/^ *[0-9]*\/[0-9]* Test/p" "$2" | grep -v '^ *$' | tail -n 12
}

# run FOLDER [ctest arguments]: runs the tests of a build and counts their cases.
run() {
  local folder=$1 results tests bad program
  shift
  results=$PWD/$folder/results
  rm -rf "$results"
  mkdir -p "$results"
  GTEST_OUTPUT="xml:$results/" timeout "$(left)" ctest --test-dir "$folder" --output-on-failure \
    -j 2 "$@" >"$folder/ctest.log" 2>&1
  local code=$?
  [ $code -eq 124 ] && { out_of_time "running the tests of $folder"; return; }
  for xml in "$results"/*.xml; do
    [ -f "$xml" ] || continue
    tests=$(attribute tests "$xml")
    bad=$(attribute failures "$xml")
    local left_out
    left_out=$(grep -c 'result="skipped"' "$xml")
    if [ "$left_out" -gt 0 ]; then
      echo "$left_out skipped in $(basename "$xml" .xml):"
      grep -o '<skipped message="[^"]*' "$xml" | sed 's/^/  /' | sort | uniq -c
    fi
    skipped=$((skipped + left_out))
    passed=$((passed + tests - bad - left_out))
    failed=$((failed + bad))
  done
  if [ $code -ne 0 ]; then
    grep -h -o '<failure message="[^"]*' "$results"/*.xml | sed -n 1,20p
    grep -E '\[  FAILED  \]|\*\*\*|ERROR: |WARNING: ThreadSanitizer|runtime error' \
      "$folder/ctest.log" | sort -u | sed -n 1,40p
    # A program that died left no results: count it itself.
    local deaths='SEGFAULT\|Subprocess aborted\|Child aborted\|Timeout\|ILLEGAL\|BUS_ERROR'
    for program in $(sed -n "s/^.*[0-9] - \([a-z_0-9]*\) (\($deaths\)).*/\1/p" \
      "$folder/ctest.log"); do
      fail "$program in $folder"
      last_words "$program" "$folder/ctest.log"
    done
    [ "$failed" -gt 0 ] || fail "ctest in $folder (see $folder/ctest.log)"
  fi
}

# enough SECONDS WHAT: whether a part that needs about that long may begin.
enough() {
  [ "$(left)" -ge "$1" ] && return
  echo "not run: $2 needs about $1 s and $(left) s of the time box are left"
  skipped=$((skipped + 1))
  return 1
}

say "setup"
scripts/setup.sh --tests || { fail "scripts/setup.sh"; finish; }

say "release build"
build build "" all || finish
say "tests"
run build
[ "${1:-}" = --quick ] && finish

if enough 240 "the Arm build"; then
  say "Arm"
  if scripts/cross_aarch64.sh; then succeed; else fail "scripts/cross_aarch64.sh"; fi
fi
# The cli runs as a program of its own, and the search is single work in many threads that its own
# tests repeat; the rest of the code is here. What tries every combination of splits, families and
# syncs has tried them above: instrumented it takes half of the time, on paths that others go too.
if enough 300 "the address and undefined-behaviour sanitizers"; then
  say "address and undefined-behaviour sanitizers"
  GTEST_FILTER='-ranks.every_split*:*split_ranks.every_way*:expert_ranks.every_way*'
  GTEST_FILTER+=':pipeline.every_schedule*:subsequences.fates_syncs*:knobs.each_does_so*'
  GTEST_FILTER+=':contract.so_it_does*:damage.every_flipped*:Gradients.*'
  export GTEST_FILTER
  build build/asan address,undefined test_base test_spec test_graph test_engine test_profiles \
    test_kernels test_comm test_faults test_backend &&
    BALLAST_FAULT_SEEDS=20 run build/asan \
      -R '^(base|spec|graph|engine|profiles|kernels|comm|faults|backend)(_[0-9])?$'
  unset GTEST_FILTER
fi
# Whatever more than one thread touches: executor, lanes, pacer, trainer, workers, ranks.
if enough 240 "the thread sanitizer"; then
  say "thread sanitizer"
  export GTEST_FILTER='exact*:*xecutor*:*aced*:*acer*:resume.a_req*:weights*:*hreads*'
  GTEST_FILTER+=':CudaDevice.every_plan*:CudaDevice.rollbacks*:*ommunicator*:ranks.all_take*'
  GTEST_FILTER+=':split_ranks.every_plan*:background*:nccl_ranks.*:nccl_graph.*'
  GTEST_FILTER+=':nccl_training.what*:nccl_training.three*:nccl_training.a_rank*'
  # Two paced ranks meet under it too; what four of them take is no question for it.
  GTEST_FILTER+=':-PacedRanks.four_gh200*'
  build build/tsan thread test_backend test_comm test_nccl &&
    run build/tsan -R '^(backend_[0-9]|comm|nccl)$'
  unset GTEST_FILTER
fi
# The CUDA kernels, emulated: one test for every barrier of theirs.
if enough 400 "the CUDA kernels under the thread sanitizer"; then
  say "CUDA kernels under the thread sanitizer"
  GTEST_FILTER='attention.heads*:attention.large*:attention.rotation*:rows.a_norms*:rows.a_bias*'
  GTEST_FILTER+=':tokens.a*:tokens.two*:bits.a_rec*:bits.sums*:eight_bit.codes*'
  export GTEST_FILTER
  build build/tsan thread test_cuda_emulated && run build/tsan -R '^cuda_emulated_[0-9]$'
  unset GTEST_FILTER
fi
if enough 100 "the fuzzers"; then
  say "fuzzers"
  if scripts/fuzz.sh 5; then succeed; else fail "scripts/fuzz.sh"; fi
fi
say "all"
finish
