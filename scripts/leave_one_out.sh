#!/usr/bin/env bash
# Predicts every shipped case without its source, without its framework, and fitted to it:
# the tables of docs/validation.md. Takes about a minute on two cores.
#   scripts/leave_one_out.sh [BALLAST]      default build/ballast
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${1:-build/ballast}" validate
