#!/usr/bin/env bash
# Two builds side by side: every example job under every strategy that the old build knows, ten
# steps, the weights compared byte for byte and the planned bytes as numbers.
#
#   bench/builds/same_bits.sh OLD NEW          paths of two dhelix programs
#   bench/builds/same_bits.sh OLD NEW tp2 pp2  only these examples
#   KEEP=DIR bench/builds/same_bits.sh OLD NEW keeps what OLD gives there for the next time
#
# A row a job and strategy; the last line counts them. The exit status is 0 when all are equal.
# What the old build refuses (a strategy that is not for this mesh) has to be refused by the new one too.
source "$(dirname "$0")/../../scripts/env.sh"

[ $# -ge 2 ] || die "usage: bench/builds/same_bits.sh OLD NEW [example...]"
old=$(realpath "$1") new=$(realpath "$2")
shift 2
examples=("$@")
[ $# -gt 0 ] || examples=(tp2 cp2 pp2 tp2cp2 tp2pp2 dp2 zero1 mixtral_ep2 quickstart nanogpt_char)
work=$(mktemp -d "${TMPDIR:-/tmp}/dhelix-bits-XXXXXX")
trap 'rm -rf "$work"' EXIT
keep=${KEEP:-$work/kept}
mkdir -p "$keep"
export DHELIX_LOG=error XDG_CACHE_HOME=$work/cache
mapfile -t strategies < <("$old" list strategies --json | sed -n 's/.*"name": *"\([^"]*\)".*/\1/p' | sort -u)
[ ${#strategies[@]} -gt 0 ] || die "$old lists no strategies"

# result <dhelix> <example> <strategy>: a digest of the weights and the planned bytes, or "refused".
result() {
    local out=$work/run
    rm -rf "$out"
    if ! "$1" train "examples/$2.yaml" --quiet --set "strategy=$3" --set "out=$out" --set train.steps=10 \
        --set train.threads=1 --set eval.every=0 --set checkpoint.every=0 >"$work/log" 2>&1; then
        echo refused
        return
    fi
    sha256sum <"$out/checkpoints/step-000010/model.safetensors" | cut -c1-16 | tr '\n' ' '
    sed -n 's/.*"slab_planned_bytes": *\([0-9]*\).*/\1/p' "$out/summary.json" | head -1
}

n=0 differ=0
for example in "${examples[@]}"; do
    for strategy in "${strategies[@]}"; do
        known=$keep/$example.$strategy
        [ -s "$known" ] || result "$old" "$example" "$strategy" >"$known"
        was=$(cat "$known") is=$(result "$new" "$example" "$strategy")
        n=$((n + 1))
        if [ "$was" = "$is" ]; then word=same; else
            word="DIFFERS: $is"
            differ=$((differ + 1))
        fi
        printf '%-14s %-26s %-34s %s\n' "$example" "$strategy" "$was" "$word"
    done
done
echo "$n rows, $differ differ"
[ "$differ" -eq 0 ]
