#!/usr/bin/env bash
# Install, build, train a small character model on Shakespeare and sample from it; then a model
# on two ranks with a slow link, its communication hidden and not, and both runs as one page.
# Less than five minutes on two cores. Arguments go to `dhelix train`, e.g.
#   ./quickstart.sh --set parallel.tp=1 --set train.threads=2
source "$(dirname "$0")/scripts/env.sh"

say "dependencies"
scripts/install_deps.sh

say "build (minutes; build/release.log says how far it is)"
build release dhelix
dhelix=build/release/src/cli/dhelix

say "measure this machine's operators (examples/quickstart.yaml)"
"$dhelix" profile examples/quickstart.yaml --seconds 12 --quiet

say "train"
out=runs/quickstart
"$dhelix" train examples/quickstart.yaml --fresh --set out="$out" "$@"

say "sample"
"$dhelix" sample "$out" --prompt "ROMEO:" --tokens 300 --seed 1

say "hide communication: two ranks on a slow link (examples/hide.yaml), one strand of micro-batches and two"
"$dhelix" profile examples/hide.yaml --seconds 12 --quiet
for strategy in sequential dhelix; do
    "$dhelix" train examples/hide.yaml --fresh --set train.steps=6 --set trace.step=6 \
        --set strategy=$strategy --set out=runs/$strategy
done

say "report"
"$dhelix" report "$out"
"$dhelix" report runs/sequential runs/dhelix -o runs/hide.html

say "written"
printf '  %-28s %s\n' \
    "$out/checkpoints/" "weights with Hugging Face names, and the optimizer state" \
    "$out/metrics.jsonl" "one JSON object per step" \
    "$out/report.html" "the run as one page" \
    runs/hide.html "communication hidden, beside what hides less" \
    examples/quickstart.yaml "the job; every setting: $dhelix help job"
