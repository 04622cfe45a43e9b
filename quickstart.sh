#!/usr/bin/env bash
# Install, build, train a small character model on Shakespeare, sample from it.
# Less than five minutes on two cores. Arguments go to `dhelix train`, e.g.
#   ./quickstart.sh --set parallel.tp=1 --set train.threads=2
source "$(dirname "$0")/scripts/env.sh"

say "dependencies"
scripts/install_deps.sh

say "build"
build release dhelix
dhelix=build/release/src/cli/dhelix

say "measure this machine's operators (examples/quickstart.yaml)"
"$dhelix" profile examples/quickstart.yaml --quiet

say "train"
out=runs/quickstart
"$dhelix" train examples/quickstart.yaml --fresh --set out="$out" "$@"

say "report"
"$dhelix" report "$out"

say "sample"
"$dhelix" sample "$out" --prompt "ROMEO:" --tokens 300 --seed 1

say "written"
printf '  %-28s %s\n' \
    "$out/checkpoints/" "weights with Hugging Face names, and the optimizer state" \
    "$out/metrics.jsonl" "one JSON object per step" \
    "$out/report.html" "the run as one page" \
    examples/quickstart.yaml "the job; every setting: $dhelix help job"
