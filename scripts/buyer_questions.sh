#!/usr/bin/env bash
# Asks the questions of tests/data/buyer_questions.json and writes their answers to docs/buyers.md,
# or to the file named. Says how long each took; exit 1 where one has another verdict than it should
# or takes longer than its seconds (10 where it names none), of a clock and of a core both, so that
# others who use the machine make nothing late.
# Usage: scripts/buyer_questions.sh [BALLAST] [FILE]
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 scripts/buyer_questions.py "${1:-build/ballast}" "${2:-docs/buyers.md}"
