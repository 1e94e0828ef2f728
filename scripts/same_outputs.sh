#!/usr/bin/env bash
# What two builds of ballast print of the same questions, byte for byte: for changes of structure,
# which must not change a figure. Prints each question whose answer differs, with the beginning of
# the difference; the last line counts. Exits 1 where any differs.
#   scripts/same_outputs.sh BEFORE AFTER [FOLDER]   two programs; answers stay in FOLDER, if given
set -uo pipefail
[ $# -ge 2 ] || { sed -n '2,5s/^# *//p' "$0"; exit 2; }
before=$(realpath "$1") after=$(realpath "$2")
cd "$(dirname "$0")/.."
folder=${3:-$(mktemp -d)}
mkdir -p "$folder/before" "$folder/after"

gh200="--machine gh200-96gb-480gb"
quad="--machine alps-gh200-quad"
dgx="--machine dgx-h100-80gb"
questions() {
  echo "validate validate --json"
  local strategy
  for file in profiles/strategies/*.json; do
    strategy=$(basename "$file" .json)
    echo "graph-$strategy graph --json --model gpt2-xl $quad --devices 4 --strategy $strategy"
    echo "graph-one-$strategy graph --json --model gpt2 $gh200 --strategy $strategy"
    echo "predict-$strategy predict --json --model llama-3-8b $dgx --devices 8 --strategy $strategy"
  done
  echo "graph-pipeline graph --json --model gpt2-xl $dgx --devices 8 --pipeline 4" \
    "--strategy megatron"
  echo "predict-pipeline predict --json --model gpt3-175b $dgx --devices 512 --pipeline 8" \
    "--tensor 8 --virtual-pipeline 2 --strategy megatron --micro-batch 1 --global-batch 512"
  echo "predict-experts predict --json --model mixtral-8x7b $dgx --devices 64 --expert 8" \
    "--zero-stage 3"
  echo "predict-infinity predict --json --model gpt-13b $gh200 --strategy zero-infinity"
  echo "tune-1 tune --json --model gpt-13b $gh200 --global-batch 8"
  echo "tune-2 tune --json --model gpt2-xl $gh200 --global-batch 16 --allow-delay"
  echo "tune-3 tune --json --model llama-2-7b $dgx --devices 8 --strategy zero-3"
  echo "tune-4 tune --json --model llama-3-8b $dgx --devices 8 --strategy megatron --tensor 8"
  echo "tune-5 tune --json --model llama-2-13b $quad --devices 8 --strategy zero-3"
  echo "tune-6 tune --json --model gpt-22b $quad --devices 4 --strategy zero-infinity"
  echo "tune-7 tune --json --model gpt-22b $dgx --devices 16 --strategy megatron --pipeline 4" \
    "--tensor 4 --zero-stage 1"
  echo "tune-8 tune --json --model qwen3-8b $gh200 --sequence-length 8192 --global-batch 4" \
    "--ablation"
  echo "tune-9 tune --json --model llama-3.2-1b $gh200 --sensitivity"
  echo "tune-10 tune --json --model mixtral-8x7b $dgx --devices 32 --strategy zero-3 --expert 8"
  echo "compare compare --json --model llama-3-8b,gpt-13b $quad --devices 4" \
    "--strategy superoffload,zero-offload,zero-3,fsdp-offload"
}

# answer PROGRAM SIDE NAME WORDS...: what the program prints, less what no two runs share.
answer() {
  local program=$1 file=$folder/$2/$3
  shift 3
  local more=(--store "$file.db")
  [ "$1" = validate ] && more=()
  [ "$1" = tune ] && more+=(--out "$file.plan" --deadline 600)
  "$program" "$@" "${more[@]}" >"$file.raw" 2>"$file.errors"
  echo "exit $?" >>"$file.raw"
  # Lines of progress tell how fast the machine is; errors begin with the program's name.
  grep '^ballast: ' "$file.errors" >>"$file.raw"
  sed -E -e "s#$folder/(before|after)#FOLDER#g" -e '/"(search_)?seconds"|"commit"|"took_s"/d' \
    "$file.raw" >"$file.txt"
  rm -f "$file".db* "$file.raw" "$file.errors"
}

same=0
different=0
while read -r name words; do
  # shellcheck disable=SC2086
  [ -f "$folder/before/$name.txt" ] || answer "$before" before "$name" $words
  # shellcheck disable=SC2086
  answer "$after" after "$name" $words
  if cmp -s "$folder/before/$name.txt" "$folder/after/$name.txt"; then
    same=$((same + 1))
  else
    different=$((different + 1))
    echo "DIFFERENT: ballast $words"
    diff "$folder/before/$name.txt" "$folder/after/$name.txt" | sed -n 1,6p | cut -c1-160
  fi
done < <(questions)
echo "$same the same, $different different"
[ "$different" -eq 0 ]
