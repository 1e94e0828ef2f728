#!/usr/bin/env bash
# The story of SuperOffload (arXiv 2509.21271) from the switches of a plan: each claim of the paper
# next to what `ballast predict` says of it. docs/superoffload.md tells it. Takes a few minutes;
# BALLAST names another program than build/ballast.
set -euo pipefail
cd "$(dirname "$0")/.."
ballast=$(realpath "${BALLAST:-build/ballast}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

chip="--machine gh200-96gb-480gb"
nodes="--machine gh200-nvl2-96gb-240gb"
as_measured="--stack deepspeed-gh200"

# model NAME LAYERS HIDDEN HEADS POSITIONS: a GPT's config.json.
model() {
  cat >"$work/$1.json" <<JSON
{"model_type": "gpt2", "n_layer": $2, "n_embd": $3, "n_head": $4, "n_positions": $5,
 "vocab_size": 50432, "tie_word_embeddings": true}
JSON
}
# predict FLAGS: the JSON of a prediction, fitting or not; as Ballast's own backend where they name
# no stack.
predict() {
  case " $* " in
    *" --stack "*) ;;
    *) set -- "$@" --stack ballast ;;
  esac
  "$ballast" predict --json "$@" || [ $? -eq 1 ]
}
# field KEY: of the JSON on the input, the first value of the key that is no list and not null
# (intervals have the same keys), without quotes; null where there is no other.
# The input is read to its end, or its writer would fail.
field() {
  awk -v key="\"$1\":" '
    $1 == key && $2 !~ /^\[/ && (best == "" || best == "null") {
      best = $2
      gsub(/[",]/, "", best)
    }
    END { if (best != "") print best }'
}
# idle: percent of the step in which the GPU computes nothing.
idle() {
  awk '/"lane": "compute"/ { found = 1 }
       found && /"share"/ { printf "%.0f", 100 - 100 * $2; found = 0 }'
}
# published_tflops LAYERS HIDDEN SEQUENCE BATCH SECONDS DEVICES: as papers count, attention in full
# squares and no recompute (Narayanan et al., SC21, arXiv 2104.04473, eq. 3, by 72 for 96).
published_tflops() {
  awk -v l="$1" -v h="$2" -v s="$3" -v b="$4" -v t="$5" -v n="$6" -v v=50432 'BEGIN {
    printf "%.1f", 72e-12 * b * s * l * h * h * (1 + s / (6 * h) + v / (12 * l * h)) / t / n }'
}
heading() { printf '\n== %s\n' "$1"; }

# Positions are rotary: a learned table of a million would add 5.4B parameters.
cat >"$work/13b.json" <<'JSON'
{"model_type": "llama", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40,
 "intermediate_size": 13824, "vocab_size": 50432, "max_position_embeddings": 1048576,
 "rms_norm_eps": 1e-5, "tie_word_embeddings": true}
JSON

heading "1. Each part helps, in the published order (5B, 8 x 1024 tokens; Table 2)"
model 5b 44 3072 32 1024
ablation="$chip $as_measured --model $work/5b.json --dtype fp16 --sequence-length 1024 \
  --global-batch 8 --strategy superoffload"
part() { # NAME PUBLISHED FLAGS
  local name=$1 published=$2 json seconds
  shift 2
  # shellcheck disable=SC2086  # flags are several words
  json=$(predict $ablation "$@")
  seconds=$(field step_time_s <<<"$json")
  printf '%-28s %9s %10s %11s %10s\n' "$name" "$published" \
    "$(published_tflops 44 3072 1024 8 "$seconds" 1)" "$(printf '%.3f' "$seconds")" \
    "$(idle <<<"$json") %"
}
printf '%-28s %9s %10s %11s %10s\n' "TFLOP/s" published predicted "step, s" "GPU idle"
kept=(--set plan.weights=stationary --set plan.optimizer.gpu_buckets=0)
adam() { printf -- '--set plan.optimizer.adam=%s' "$1"; }
# shellcheck disable=SC2046  # adam gives two words
{
  part "ZeRO-Offload" 116.2 "${kept[@]}" $(adam cpu-adam) --set plan.optimizer.cast=cpu \
    --set plan.optimizer.sync=wait
  part "+ GraceAdam" 128.23 "${kept[@]}" $(adam grace-adam) --set plan.optimizer.cast=cpu \
    --set plan.optimizer.sync=wait
  part "+ casting on the GPU" 144.49 "${kept[@]}" $(adam grace-adam) --set plan.optimizer.sync=wait
  part "+ speculation" 209.36 "${kept[@]}" $(adam grace-adam)
  part "+ buckets on the GPU" 238.92 --set plan.weights=stationary $(adam grace-adam)
}
echo "published idle: 40 to 50 % of ZeRO-Offload's step, near none of SuperOffload's"
echo "ZeRO-Offload by batch, one micro-batch and nothing recomputed:"
for batch in 4 8 12 16 20; do
  # shellcheck disable=SC2086
  json=$(predict $chip $as_measured --model "$work/5b.json" --dtype fp16 --sequence-length 1024 \
    --strategy zero-offload --global-batch "$batch" --micro-batch "$batch" \
    --set plan.activations=keep)
  seconds=$(field step_time_s <<<"$json")
  if [ "$seconds" = null ]; then
    printf '%-28s %9s\n' "$batch sequences" "does not fit"
  else
    printf '%-28s %9s %10s %11s %10s\n' "$batch sequences" "" \
      "$(published_tflops 44 3072 1024 "$batch" "$seconds" 1)" "$(printf '%.3f' "$seconds")" \
      "$(idle <<<"$json") %"
  fi
done
echo "others of the paper's Fig. 10, 8 sequences, by DeepSpeed and PyTorch:"
# other NAME PUBLISHED STRATEGY
other() {
  local json seconds
  # shellcheck disable=SC2086
  json=$(predict $chip $as_measured --model "$work/5b.json" --dtype fp16 --sequence-length 1024 \
    --global-batch 8 --strategy "$3")
  seconds=$(field step_time_s <<<"$json")
  printf '%-28s %9s %10s %11s %10s\n' "$1" "$2" "$(published_tflops 44 3072 1024 8 "$seconds" 1)" \
    "$(printf '%.3f' "$seconds")" "$(idle <<<"$json") %"
}
other "FSDP-Offload" "below 15" fsdp-offload
other "ZeRO-Infinity" "below 50" zero-infinity

heading "2. The link saturates at buckets of 64 MB (Fig. 7)"
printf '%-12s %16s %16s\n' "bucket, MiB" "to the CPU, GB/s" "to the GPU, GB/s"
for mib in 4 16 64 256; do
  # shellcheck disable=SC2086
  "$ballast" graph --json $chip --model "$work/5b.json" --sequence-length 1024 --global-batch 1 \
    --micro-batch 1 --strategy superoffload --set plan.weights=stationary \
    --set plan.optimizer.gpu_buckets=0 --set plan.activations=keep \
    --set plan.optimizer.bucket_bytes=$((mib << 20)) |
    awk -v mib="$mib" '/"lane":/ { lane = $2 }
      /"label": "copy optimizer bucket 1"/ { found = 1 }
      found && /"alone_s"/ { s = $2 + 0 }
      # Partial sums of the norm leave on the same lane, a few bytes at a time.
      found && /"bytes"/ { now = $2 / s * 1e-9; found = 0; if (now > rate[lane]) rate[lane] = now }
      END { printf "%-12s %16.0f %16.0f\n", mib, rate["\"copy-out\","], rate["\"upload\","] }'
done

heading "3. Stationary weights at small batch, flowing weights at long sequence"
printf '%-24s %12s %12s\n' "13B, step in s" stationary flowing
for run in "1 1024" "2 1024" "4 1024" "8 1024" "16 1024" "32 1024" "1 65536" "1 327680"; do
  read -r batch tokens <<<"$run"
  row=()
  for weights in stationary flow; do
    # shellcheck disable=SC2086
    seconds=$(predict $chip --model "$work/13b.json" --strategy superoffload \
      --sequence-length "$tokens" --global-batch "$batch" --set plan.optimizer.gpu_buckets=0 \
      --set plan.weights=$weights | field step_time_s)
    [ "$seconds" = null ] && seconds="does not fit" || seconds=$(printf '%.3f' "$seconds")
    row+=("$seconds")
  done
  printf '%-24s %12s %12s\n' "$batch x $tokens tokens" "${row[0]}" "${row[1]}"
done
echo "as DeepSpeed, whose activations stay or are recomputed, one sequence:"
for tokens in 2048 6144 8192 10240 12288 14336; do
  row=()
  for weights in stationary flow; do
    # shellcheck disable=SC2086
    row+=("$(predict $chip $as_measured --model "$work/13b.json" --strategy superoffload \
      --sequence-length "$tokens" --global-batch 1 --set model.position=rope \
      --set plan.optimizer.gpu_buckets=0 --set plan.weights=$weights | field step_time_s)")
  done
  printf '%-24s %12.3f %12.3f\n' "1 x $tokens tokens" "${row[0]}" "${row[1]}"
done
row=()
for weights in stationary flow; do
  # shellcheck disable=SC2086
  row+=("$(predict $chip --max-sequence --model "$work/13b.json" --strategy superoffload \
    --global-batch 1 \
    --set plan.optimizer.gpu_buckets=0 --set plan.weights=$weights | field max_sequence_length)")
done
printf '%-24s %12s %12s\n' "longest, tokens" "${row[@]}"

heading "4. The largest model"
printf '%-34s %10s %10s %8s  %s\n' "billions of parameters" published predicted binds shape
largest() { # NAME PUBLISHED FLAGS
  local name=$1 published=$2 json
  shift 2
  json=$(predict --max-model "$@")
  printf '%-34s %10s %10.1f %8s  %s x %s\n' "$name" "$published" \
    "$(field parameters <<<"$json" | awk '{ print $1 * 1e-9 }')" "$(field binds <<<"$json")" \
    "$(field layers <<<"$json")" "$(field hidden <<<"$json")"
}
one="--sequence-length 1024 --global-batch 1 --dtype fp16"
# shellcheck disable=SC2086
{
  largest "GPU alone, 1 chip" 3.5 $chip $one --strategy ddp $as_measured
  largest "ZeRO-Offload, 1 chip" 15 $chip $one --strategy zero-offload $as_measured
  largest "SuperOffload, 1 chip" 25 $chip $one --strategy superoffload
  largest "the same as DeepSpeed" 25 $chip $one --strategy superoffload $as_measured
  largest "SuperOffload, 4 chips" 50 $nodes --devices 4 --zero-stage 3 --sequence-length 1024 \
    --global-batch 4 --strategy superoffload
  largest "SuperOffload, 16 chips" 200 $nodes --devices 16 --zero-stage 3 --sequence-length 1024 \
    --global-batch 16 --strategy superoffload
}

heading "5. A million tokens: 13B on eight chips, Ulysses over all of them"
long="$nodes --devices 8 --sequence 8 --strategy superoffload-ulysses --global-batch 1"
printf '%-28s %6s %10s %12s %12s %16s\n' "1,048,576 tokens" fits "step, s" "GPU, GiB" "CPU, GiB" \
  "MFU (published)"
for stack in ballast deepspeed-gh200; do
  # shellcheck disable=SC2086
  json=$(predict $long --model "$work/13b.json" --sequence-length 1048576 --stack "$stack")
  seconds=$(field step_time_s <<<"$json")
  # 989.4 TFLOP/s: dense 16-bit peak of the data sheet.
  mfu=$(published_tflops 40 5120 1048576 1 "$seconds" 8 | awk '{ printf "%.0f", $1 / 9.894 }')
  printf '%-28s %6s %10.0f %12.1f %12.1f %16s\n' "$stack" "$(field fits <<<"$json")" "$seconds" \
    "$(field peak_gpu_bytes <<<"$json" | awk '{ print $1 / 2^30 }')" \
    "$(field peak_cpu_bytes <<<"$json" | awk '{ print $1 / 2^30 }')" "$mfu % (55 %)"
done
for stack in ballast deepspeed-gh200; do
  # shellcheck disable=SC2086
  printf '%-28s %s tokens\n' "longest, $stack" \
    "$(predict --max-sequence $long --model "$work/13b.json" --stack "$stack" |
      field max_sequence_length)"
done
