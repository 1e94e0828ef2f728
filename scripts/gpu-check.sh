#!/usr/bin/env bash
# Everything that needs a GPU, once: builds, tests, profiles, tunes, trains, verifies a ladder of
# models and compares with PyTorch. Needs a compiler, CMake and CUDA 13; takes the dependencies from
# .deps/ (scripts/stage_dependencies.sh) where that is there, else from the system. Leaves under
# OUT: log.txt, summary.txt, the machine as JSON, verify records, traces and metrics.
#   scripts/gpu-check.sh OUT [--only STEP] [--minutes N] [--resume ARCHIVE]
# STEP: build, test, ranks, profile, tune, train, verify, pytorch or sanitize. A later call goes
# on where an earlier one ran out of time: a step that left OUT/STEP.done is not run again unless
# --only names it, and of verify, pytorch and sanitize no run that left its record. All of it is in
# OUT/gpu-check.tar.gz in the end; where OUT was emptied since, --resume brings it back from there.
# On an H100 beside 16 cores test took 2 minutes, profile 2 and verify 20 s a model of 1.5 billion;
# by estimate build takes 2, tune 1, train 2, verify 8 in all, pytorch 6, and sanitize what is left:
# three calls of 10 minutes do all but the end of it. Programs of another machine
# (BALLAST_GPU_BUILD) save the build.
# Without a GPU the steps build and test do what can be done; the others are skipped, and so is test
# in the end. Beside a GPU no test of the CPU runs. A GPU that nvidia-smi lists and no test reaches
# is a failure. The step ranks, NCCL between GPUs, is skipped where there are fewer than two.
# The last line is "N done, N failed, N skipped"; exits 1 if a step failed.
set -uo pipefail
cd "$(dirname "$0")/.."

usage() {
  sed -n 's/^#   //p' "$0" >&2
  exit 2
}
steps=(build test ranks profile tune train verify pytorch sanitize)
[ $# -ge 1 ] || usage
out=$1
shift
only="" minutes=30 resume=""
while [ $# -gt 0 ]; do
  case $1 in
    --only) only=${2:?} && shift 2 ;;
    --minutes) minutes=${2:?} && shift 2 ;;
    --resume) resume=${2:?} && shift 2 ;;
    *) usage ;;
  esac
done
[ -z "$only" ] || [[ " ${steps[*]} " == *" $only "* ]] || usage
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
[ -z "$resume" ] || tar -C "$out" -xzf "$resume" || exit 2
exec > >(tee -a "$out/log.txt") 2>&1
log=$!
end=$((SECONDS + minutes * 60))
build=${BALLAST_GPU_BUILD:-build/gpu}
store=$out/store.db
done_count=0 failed=0 skipped=0

left() { echo $((end - SECONDS)); }
# shown COMMAND...: prints it, and runs it for as long as the time lasts.
shown() {
  printf '$ %s\n' "$*"
  [ "$(left)" -gt 0 ] || { echo "out of time"; return 124; }
  timeout --kill-after=10 "$(left)" "$@"
  local code=$?
  [ $code -ne 137 ] || [ "$(left)" -gt 0 ] || code=124  # it had to be killed
  return $code
}
gpus() { nvidia-smi -L 2>/dev/null | grep -c '^GPU'; }
has_gpu() { [ "$(gpus)" -gt 0 ]; }
no_gpu="there is no GPU (nvidia-smi lists none)"
ballast() { shown "$build/ballast" "$@"; }

# find_library VARIABLE FILE PACKAGE: names a library that is loaded at run time in the variable,
# unless that says already which: beside the toolkit, where the loader looks, or in nvidia.PACKAGE
# of Python.
find_library() {
  [ -z "${!1:-}" ] || return
  local place
  local places=("${CUDA_HOME:-/usr/local/cuda}/lib64"
    "$(ldconfig -p 2>/dev/null | awk -v file="$2" '$1 == file && !n++ { print $NF }' |
      xargs -r dirname)"
    "$(python3 -c "import nvidia.$3 as c; print(list(c.__path__)[0] + '/lib')" 2>/dev/null)")
  for place in "${places[@]}"; do
    [ -n "$place" ] && [ -f "$place/$2" ] || continue
    export "$1=$place/$2"
    return
  done
}
find_cudnn() {
  local named=${BALLAST_CUDNN:-}
  find_library BALLAST_CUDNN libcudnn.so.9 cudnn
  [ -z "$named" ] || return
  if [ -n "${BALLAST_CUDNN:-}" ]; then
    echo "attention by $BALLAST_CUDNN"
  else
    echo "there is no cuDNN: attention by our kernels"
  fi
}

# A toolkit may be a compiler alone, and the libraries those of Python packages (PyTorch brings them
# under nvidia/), whose files lack the names that a linker looks for: those are made.
find_libraries() {
  local nvcc toolkit site name file borrowed
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
  site=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])' 2>/dev/null) || return 0
  mkdir -p "$build/borrowed"
  borrowed=$(cd "$build/borrowed" && pwd)
  for name in libcudart libcublasLt; do
    [ -z "$(find -L "$toolkit" -name "$name.so" -print -quit 2>/dev/null)" ] || continue
    file=$(find -L "$site" -name "$name.so.13" -print -quit)
    [ -n "$file" ] || continue
    ln -sf "$file" "$borrowed/$name.so"
    ln -sf "$file" "$borrowed/$name.so.13"
    export CMAKE_LIBRARY_PATH=$borrowed
    echo "$name of $file"
  done
  for name in cublasLt.h nvtx3/nvToolsExt.h; do
    [ -z "$(find -L "$toolkit" -path "*/include/$name" -print -quit 2>/dev/null)" ] || continue
    file=$(find -L "$site" -path "*/include/$name" -print -quit)
    [ -n "$file" ] || continue
    export CPLUS_INCLUDE_PATH=${file%"/$name"}${CPLUS_INCLUDE_PATH:+:$CPLUS_INCLUDE_PATH}
    echo "$name of $file"
  done
}

step_build() {
  command -v cmake >/dev/null || { echo "there is no cmake"; return 1; }
  find_libraries
  if [ ! -f "$build/CMakeCache.txt" ] && command -v ninja >/dev/null; then
    export CMAKE_GENERATOR=Ninja
  fi
  local staged_flags=() launcher=()
  if [ -f .deps/flags.sh ]; then . .deps/flags.sh; fi
  command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  shown cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DBALLAST_UNITY=ON "${launcher[@]}" \
    "${staged_flags[@]}" || return
  # By CMake's own list: make and ninja each list targets in their way, and not all of them.
  grep -q '/test_cuda\.dir$' "$build/CMakeFiles/TargetDirectories.txt" ||
    { echo "no CUDA toolkit was found: put its nvcc on the PATH"; return 1; }
  shown cmake --build "$build" --parallel "$(nproc)" --target ballast test_backend test_kernels \
    test_cudnn test_nccl test_cuda
}

# tests PROGRAM [FILTER [NAME]]: runs it, and tells how many of its tests passed and why others were
# skipped; NAME.xml lists them.
tests() {
  local xml=$out/${3:-$1}.xml code ran bad left_out
  rm -f "$xml"
  shown "$build/$1" --gtest_brief=1 --gtest_output="xml:$xml" --gtest_filter="${2:-*}"
  code=$?
  [ -f "$xml" ] || return $((code > 0 ? code : 1))
  ran=$(awk -F'"' '/<testsuites / { print $2 }' "$xml")
  bad=$(awk -F'"' '/<testsuites / { print $4 }' "$xml")
  left_out=$(grep -c 'result="skipped"' "$xml")
  echo "$1: $((ran - bad - left_out)) passed, $bad failed, $left_out skipped, at $SECONDS s"
  grep -o '<skipped message="[^"]*' "$xml" | sed 's/.*&#x0A;/  /' | sort | uniq -c
  return $code
}

# Every test of test_cuda in a process of its own, several at once: what a kernel breaks fails in no
# other test.
each_test_alone() {
  local list=$out/alone name
  rm -rf "$list" && mkdir "$list"
  "$build/test_cuda" --gtest_list_tests '--gtest_filter=-several_gpus.*' |
    awk '/^[^ ]/ { suite = $1 } /^ / { print suite $1 }' >"$list/names"
  [ -s "$list/names" ] || { echo "test_cuda lists no tests"; return 1; }
  export build list
  # shellcheck disable=SC2016  # expanded by each shell
  shown xargs -P 8 -I NAME bash -c 'file=$list/$(tr / _ <<<NAME).log
    timeout --kill-after=5 90 "$build/test_cuda" --gtest_filter=NAME >"$file" 2>&1 ||
      echo NAME >>"$list/failed"' <"$list/names" || return
  if grep -lq 'no GPU' "$list"/*.log; then
    echo "nvidia-smi lists a GPU that the CUDA runtime does not reach"
    return 1
  fi
  echo "test_cuda: $(wc -l <"$list/names") tests by themselves, of which" \
    "$(cat "$list/failed" 2>/dev/null | wc -l) failed"
  awk '/: Skipped$/ { getline; print "skipped: " $0 }' "$list"/*.log | sort | uniq -c
  [ -f "$list/failed" ] || return 0
  for name in $(cat "$list/failed"); do
    echo "-- $name"
    awk '!/^(\[|Running|Note)/ && n++ < 12' "$list/$(tr / _ <<<"$name").log"
  done
  return 1
}

# Bad accesses and races of some kernels at small sizes: a minute.
short_sanitize() {
  command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer: left out"; return 0; }
  local tool filter=rows.*:bits.sums*:bits.an_adam*:attention.heads*:eight_bit.the_same*
  for tool in memcheck racecheck; do
    shown timeout 120 compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/test_cuda" \
      --gtest_brief=1 "--gtest_filter=$filter" | tail -n 3
    case ${PIPESTATUS[0]} in
      0) ;;
      9) return 1 ;;
      *) echo "$tool did not come to its end: left out" ;;
    esac
  done
}

step_test() {
  if ! has_gpu; then
    tests test_kernels || return
    tests test_backend || return
    # Its calls; its plans for a described GPU are skipped beside a driver, for test_cuda runs them.
    tests test_cudnn || return
    # NCCL's calls, by a library in its place.
    tests test_nccl || return
    echo "skipped: $no_gpu"
    return 77
  fi
  local code=0
  each_test_alone || code=$?
  [ $code -ne 124 ] || return 124
  short_sanitize || code=1
  exactness || code=$?
  return $code
}

# NCCL itself, with a rank on every GPU.
step_ranks() {
  local count
  count=$(gpus)
  if [ "$count" -lt 2 ]; then
    echo "skipped: fewer than two GPUs (nvidia-smi lists $count)"
    return 77
  fi
  find_library BALLAST_NCCL libnccl.so.2 nccl
  tests test_cuda 'several_gpus.*' several_gpus || return
  if grep -q 'result="skipped"' "$out/several_gpus.xml"; then
    echo "nvidia-smi lists $count GPUs, of which the CUDA runtime reaches fewer than two"
    return 1
  fi
  trains_on_two_gpus
}

# train_on_two_gpus FILE FLAG...: ten steps of GPT-2 on two GPUs, whose weights are exported.
train_on_two_gpus() {
  shown mpirun --allow-run-as-root -n 2 "$build/ballast" train --device cuda \
    --machine hgx-h200-quad --model gpt2 --devices 2 --steps 10 --global-batch 4 --micro-batch 2 \
    --sequence-length 256 --store "$store" --set model.dropout=0 \
    --set plan.optimizer.sync=wait "${@:2}" --export "$1"
}

# However ranks share state and weights, the weights that they export are the same; so are those of
# tensor ranks wherever the optimizer's state is.
trains_on_two_gpus() {
  command -v mpirun > /dev/null || { echo "there is no mpirun: trainings left out"; return 0; }
  local zero placement split file first=$out/two-gpus-0.safetensors
  for zero in 0 1 2 3; do
    file=$out/two-gpus-$zero.safetensors
    train_on_two_gpus "$file" --set plan.data=2 --set plan.zero_stage=$zero \
      --set plan.optimizer.placement=gpu || return
    cmp "$first" "$file" || { echo "ZeRO $zero differs from ZeRO 0"; return 1; }
  done
  for split in false true; do
    first=$out/two-gpus-tensor-$split-gpu.safetensors
    for placement in gpu cpu; do
      file=$out/two-gpus-tensor-$split-$placement.safetensors
      train_on_two_gpus "$file" --set plan.tensor=2 --set plan.tensor_sequence=$split \
        --set plan.weights.flow_share=0 --set plan.optimizer.placement=$placement || return
      cmp "$first" "$file" || {
        echo "tensor ranks (norms by token: $split) with state on the $placement differ from" \
          "those with state on the gpu"
        return 1
      }
    done
  done
}

# Races and bad accesses of our kernels, at the sizes of the emulation: every access takes a hundred
# times as long, and products are the library's.
step_sanitize() {
  command -v compute-sanitizer >/dev/null || { echo "skipped: no compute-sanitizer"; return 77; }
  # Some virtual machines do not let it have the device.
  if ! timeout 120 compute-sanitizer --error-exitcode 9 "$build/test_cuda" --gtest_brief=1 \
    --gtest_filter=bits.the_probes_do_what_they_time >"$out/sanitizer.txt" 2>&1; then
    tail -n 5 "$out/sanitizer.txt"
    ! grep -qiE 'not supported|error 999|failed to initialize' "$out/sanitizer.txt" || return 77
    return 1
  fi
  local tool
  [ ! -f "$out/sanitize.done" ] || rm -f "$out"/{memcheck,racecheck}.done
  for tool in memcheck racecheck; do
    [ ! -f "$out/$tool.done" ] || continue
    shown compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/test_cuda" \
      --gtest_brief=1 --gtest_filter=-large.*:products.* || return
    touch "$out/$tool.done"
  done
}

# Ten steps of a small model under every way of stepping, launched one by one and as CUDA graphs:
# the exported weights are the same bits.
exactness() {
  local way sync undo transfers buckets launching weights=()
  for way in "wait snapshot copies" "speculate snapshot copies" "speculate exact copies" \
      "wait snapshot direct" "speculate exact direct"; do
    read -r sync undo transfers <<<"$way"
    for buckets in 0 2; do
      for launching in "" --cuda-graphs; do
        local file=$out/exact-$sync-$undo-$transfers-$buckets$launching.safetensors
        ballast train --device cuda:0 --machine gh200-96gb-480gb --model gpt2 --devices 1 \
          --steps 10 --global-batch 4 --micro-batch 2 --sequence-length 256 --store "$store" \
          --set model.dropout=0 --set plan.optimizer.sync=$sync \
          --set plan.optimizer.gpu_buckets=$buckets \
          --set plan.optimizer.placement=cpu --set plan.optimizer.undo=$undo \
          --set plan.optimizer.transfers=$transfers \
          --export "$file" $launching || return
        weights+=("$file")
      done
    done
  done
  local file
  for file in "${weights[@]}"; do
    cmp "${weights[0]}" "$file" || { echo "$file differs from the waiting run"; return 1; }
  done
  echo "the same bits under every way of stepping"
  rm -f "${weights[@]}"
}

step_profile() {
  free -g
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.draw --format=csv
  ballast profile --device cuda:0 --store "$store" --out "$out/machine.json"
}

step_tune() {
  ballast tune --model gpt2-xl --machine "$out/machine.json" --devices 1 --global-batch 8 \
    --sequence-length 1024 --store "$store" --out "$out/gpt2-xl.json"
}

step_train() {
  local plan=()
  [ -f "$out/gpt2-xl.json" ] && plan=(--plan "$out/gpt2-xl.json")
  [ -f "$out/gpt2-xl.json" ] || plan=(--model gpt2-xl --machine "$out/machine.json"
    --devices 1 --global-batch 8 --sequence-length 1024)
  ballast train --device cuda:0 "${plan[@]}" --steps 30 --store "$store" \
    --metrics "$out/gpt2-xl.metrics.jsonl" || return
  # The same with kernels launched as CUDA graphs, and with our attention in place of cuDNN's.
  ballast train --device cuda:0 "${plan[@]}" --steps 30 --store "$store" --cuda-graphs \
    --metrics "$out/gpt2-xl.graphs.metrics.jsonl" || return
  fp8_follows_bf16 || return
  [ -n "${BALLAST_CUDNN:-}" ] || { echo "attention is ours alone: there is no cuDNN"; return 0; }
  BALLAST_CUDNN=none ballast train --device cuda:0 "${plan[@]}" --steps 30 --store "$store" \
    --metrics "$out/gpt2-xl.own-attention.metrics.jsonl"
}

# Thirty steps with products in bf16 and in fp8 from the same weights and data: the last losses are
# within 2 % of each other. With kept codes of weights the metrics' losses are those without.
fp8_follows_bf16() {
  local products way kept
  for way in as-stored fp8 fp8-kept; do
    products=${way%-kept}
    kept=false
    [ "$way" = fp8-kept ] && kept=true
    ballast train --device cuda:0 --machine hgx-h200-quad --model gpt2 --devices 1 --steps 30 \
      --global-batch 8 --micro-batch 4 --sequence-length 1024 --store "$store" \
      --set model.dropout=0 --set plan.products=$products --set plan.weights.keep_codes=$kept \
      --metrics "$out/gpt2.$way.metrics.jsonl" || return
  done
  cmp <(grep -o '"loss": *[0-9.eE+-]*' "$out/gpt2.fp8.metrics.jsonl") \
    <(grep -o '"loss": *[0-9.eE+-]*' "$out/gpt2.fp8-kept.metrics.jsonl") || return
  awk 'match($0, /"loss": *[0-9.eE+-]+/) {
      loss = substr($0, RSTART + 7, RLENGTH - 7) + 0
      if (!(FILENAME in first)) { first[FILENAME] = loss; files[++count] = FILENAME }
      last[FILENAME] = loss
    }
    END {
      plain = last[files[1]]; narrow = last[files[2]]
      printf "loss after 30 steps: bf16 %.4f, fp8 %.4f\n", plain, narrow
      apart = narrow > plain ? narrow - plain : plain - narrow
      exit !(count == 2 && narrow < first[files[2]] && apart < 0.02 * plain)
    }' "$out/gpt2.as-stored.metrics.jsonl" "$out/gpt2.fp8.metrics.jsonl"
}

# The ladder: 124M, 1.5B and 8B by several plans, with products in fp8 too, and the largest shipped
# model that fits, of those that the device can run.
step_verify() {
  local failed_here=0 model plan
  [ ! -f "$out/verify.done" ] || rm -f "$out/verify.done" "$out"/*.verify.json
  for model in gpt2 gpt2-xl llama-3-8b; do
    # SuperOffload leaves to a large GPU all that fits it: once with every bucket on the CPU too.
    for plan in superoffload zero-offload resident "superoffload --set plan.products=fp8" \
      "superoffload --set plan.optimizer.gpu_buckets=0"; do
      # shellcheck disable=SC2086  # a strategy, and perhaps flags
      verify_one "$model" $plan
      case $? in
        0 | 3) ;;
        124) return 124 ;;
        *) failed_here=1 ;;
      esac
    done
  done
  for model in qwen2.5-72b llama-2-70b gpt-22b llama-2-13b; do
    verify_one "$model" superoffload
    case $? in
      0) break ;;
      3) ;;
      124) return 124 ;;
      *) failed_here=1 ;;
    esac
  done
  return $failed_here
}

# verify_one MODEL STRATEGY [FLAG...]: returns 3 where the plan is infeasible (exit code 1 of
# predict): that is named and is no failure. Nothing to do where an earlier call did it.
verify_one() {
  local name=$1-$2 last=${*: -1} reserved
  # What is in use, and 8 GB for what a training keeps beside its arena and while it begins: a plan
  # that fits to the last byte would be killed.
  reserved=$(awk '/^MemTotal:/ { all = $2 } /^MemAvailable:/ { free = $2 }
    END { printf "%.1f", (all - free) * 1024 / 1e9 + 8 }' /proc/meminfo)
  local common=(--model "$1" --strategy "$2" --machine "$out/machine.json" --devices 1
    --global-batch 8 --sequence-length 1024 --store "$store"
    --set "machine.cpu.reserved_gb=$reserved" "${@:3}")
  [ $# -le 2 ] || name+=-$(tr = - <<<"${last##*.}")
  [ ! -f "$out/$name.verify.json" ] || { echo "$name: done before"; return 0; }
  ballast predict --stack ballast "${common[@]}" >"$out/$name.predicted.txt" 2>&1
  case $? in
    0) ;;
    1) echo "$name does not fit"; return 3 ;;
    124) return 124 ;;
    *) tail -n 3 "$out/$name.predicted.txt"; return 1 ;;
  esac
  ballast verify --device cuda:0 "${common[@]}" --steps 12 --out "$out/$name.verify.json" \
    --trace "$out/$name.trace.json"
}

step_pytorch() {
  local mode
  python3 -c 'import torch; raise SystemExit(not torch.cuda.is_available())' 2>/dev/null ||
    { echo "PyTorch with CUDA is not installed"; return 77; }
  for mode in compiled fsdp-offload; do
    [ ! -f "$out/torch-$mode.json" ] || [ -f "$out/pytorch.done" ] || continue
    shown python3 scripts/bench_torch_train.py --mode "$mode" --out "$out/torch-$mode.json" ||
      return
  done
}

run_step() {
  local step=$1 code reason=""
  # OUT may have come here from another machine, and the build not.
  [ "$step" != build ] || [ -x "$build/ballast" ] || rm -f "$out/build.done"
  if [ -z "$only" ] && [ -f "$out/$step.done" ]; then
    echo "== $step: done before"
    return
  fi
  printf '\n== %s   %s, commit %s\n' "$step" "$(date -u +%FT%TZ)" \
    "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
  [ "$(left)" -gt 0 ] || reason="the time is over"
  if [ -z "$reason" ] && [ "$step" != build ]; then
    [ "$step" = test ] || has_gpu || reason=$no_gpu
    [ -x "$build/ballast" ] || reason="there is no build: run the step build first"
  fi
  if [ -n "$reason" ]; then
    echo "skipped: $reason"
    echo "$step: skipped, $reason" >>"$out/summary.txt"
    skipped=$((skipped + 1))
    return
  fi
  "step_$step"
  code=$?
  case $code in
    0) touch "$out/$step.done" && done_count=$((done_count + 1)) ;;
    77) skipped=$((skipped + 1)) ;;
    124) echo "$step: out of time; call again to go on" && skipped=$((skipped + 1)) ;;
    *) echo "FAILED: $step" && failed=$((failed + 1)) ;;
  esac
  echo "$step: exit code $code after $SECONDS s" >>"$out/summary.txt"
}

find_cudnn
for step in "${steps[@]}"; do
  if [ -z "$only" ] || [ "$only" = "$step" ]; then run_step "$step"; fi
done
(cd "$out" && tar -czf gpu-check.tar.gz --exclude=gpu-check.tar.gz --exclude='*.safetensors' \
  --exclude='*.trace.json' .)
echo "$done_count done, $failed failed, $skipped skipped"
# The log is whole before the machine may go away.
exec >&- 2>&-
wait "$log"
[ "$failed" -eq 0 ]
