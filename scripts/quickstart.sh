#!/usr/bin/env bash
# The whole product once, on this machine's CPU: build, measure, predict, tune, train, verify,
# report. Leaves everything under out/quickstart/. Needs git and root (or sudo).
set -euo pipefail
cd "$(dirname "$0")/.."

out=out/quickstart
store=$out/store.db
mkdir -p "$out"
# Progress bars go to the error stream: to the terminal where there is one, else into the log.
if [ -t 2 ]; then
  exec > >(tee "$out/quickstart.log")
else
  exec > >(tee "$out/quickstart.log") 2>&1
fi

began=$SECONDS
step() { printf '\n== %s   (%d s)\n' "$1" $((SECONDS - began)); }
ballast() {
  printf '$ ballast %s\n' "$*"
  build/ballast "$@"
}

step "0. Build"
scripts/setup.sh
if [ ! -f build/CMakeCache.txt ]; then
  # Where there is no GPU, the CUDA device would refuse; its kernels are for scripts/test.sh.
  cuda=OFF
  nvidia-smi -L 2>/dev/null | grep '^GPU' >/dev/null && cuda=AUTO
  cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DBALLAST_UNITY=ON \
    -DBALLAST_CUDA=$cuda >"$out/configure.log" || { cat "$out/configure.log"; exit 2; }
fi
cmake --build build --target ballast

step "1. Measure this machine"
ballast profile --device host --store "$store"

step "2. What it is for: a model of 13 billion parameters on one GH200, and on four"
ballast predict --model gpt-13b --machine gh200-96gb-480gb --global-batch 8 \
  --strategy superoffload,zero-offload,zero-offload-delayed,resident
ballast predict --model gpt-13b --machine alps-gh200-quad --devices 4 --global-batch 32 \
  --strategy superoffload,zero-offload,zero-offload-delayed,resident

step "3. The fastest plan for a small GPT on this machine"
ballast tune --machine here --model quickstart-gpt --store "$store" --out "$out/plan.json"

step "4. Train it by that plan, on the headers of the C++ library"
ballast train --plan "$out/plan.json" --store "$store" --steps 200 --clip 4 \
  --metrics "$out/metrics.jsonl"

step "5. Was the prediction right?"
ballast verify --plan "$out/plan.json" --store "$store" --steps 20 --out "$out/verify.json" \
  --trace "$out/trace.json"

step "6. The report"
ballast report --verify "$out/verify.json" --metrics "$out/metrics.jsonl" \
  --store "$store" --out "$out/report.html"

step "Done"
echo "open $out/report.html in a browser, and $out/trace.json in https://ui.perfetto.dev"
