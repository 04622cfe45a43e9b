# A profile measured, found by the next run, refused where it does not fit; one imported.
. tests/cli/lib.sh "$1"
export XDG_CACHE_HOME=$tmp/cache
tiny_job "$tmp/job.yaml"
job=("$tmp/job.yaml" --ranks 2 --set parallel.tp=2 --set train.steps=2 --set train.threads=1)

ok "$dhelix" profile "${job[@]}" --samples 3
says 'overlap effectiveness: rows forward, columns backward'
says 'linear qkv'
says 'classes of operators'
file=$(find "$XDG_CACHE_HOME/dhelix/profiles" -name '*.json')
check 'one file is written' test -s "$file"
says "$file"

uses() { # profile or estimates, command that trains...
    local what=$1
    shift
    ok env DHELIX_LOG=info "$@"
    check "operators are ordered by $what" grep -qF "operators are ordered by $what" "$tmp/err"
}
uses "profile $file" "$dhelix" train "${job[@]}" --set out="$tmp/run"
uses estimates "$dhelix" train "${job[@]}" --set out="$tmp/none" --set profile=none
same "$(curve "$tmp/run" | cksum)" "$(curve "$tmp/none" | cksum)" 'losses with and without a profile'
uses estimates "$dhelix" train "${job[@]}" --set out="$tmp/bf16" --set train.dtype=bf16
fails 1 'train.dtype is f32 there and bf16 here' \
    "$dhelix" train "${job[@]}" --set out="$tmp/x" --set train.dtype=bf16 --set profile="$file"
fails 1 'links.local is not paced there' \
    "$dhelix" check "${job[@]}" --set links.local.gbps=1 --set profile="$file"
fails 1 'cannot open' "$dhelix" train "${job[@]}" --set out="$tmp/x" --set profile="$tmp/none.json"
check 'a refused run leaves no folder' test ! -e "$tmp/x"
sed 's/"solo": [0-9]*/"solo": 1/' "$file" >"$tmp/changed.json"
fails 1 'was changed after it was written' \
    "$dhelix" train "${job[@]}" --set out="$tmp/x" --set profile="$tmp/changed.json"

# Training measures by itself what is missing, once, and then chooses. In short runs
# test_job_profile alone sees that.
if deep; then
    rm -r "$XDG_CACHE_HOME"
    auto=("${job[@]}" --set profile=measure --set strategy=auto)
    uses "profile $file" "$dhelix" train "${auto[@]}" --set out="$tmp/auto"
    check 'it chose by what it measured' grep -q 'strategy auto: intra-batch .* ms a step' "$tmp/err"
    before=$(cksum <"$file")
    uses "profile $file" "$dhelix" train "${auto[@]}" --set out="$tmp/again"
    same "$(cksum <"$file")" "$before" 'nothing is measured twice'
fi

ok "$dhelix" profile "${job[@]}" --quiet --out "$tmp/h100.json" \
    --import tests/data/published/dhelix_h100_pairwise_oef_matrix.csv
uses "profile $tmp/h100.json" "$dhelix" train "${job[@]}" --set out="$tmp/imported" \
    --set profile="$tmp/h100.json"
ok "$dhelix" profile "${job[@]}" --json --out "$tmp/folder/new.json" \
    --import tests/data/published/dhelix_h100_pairwise_oef_matrix.csv
same "$(json file)" "$tmp/folder/new.json"
same "$(json format)" dhelix-profile
fails 2 'measures nothing' "$dhelix" profile "${job[@]}" --samples 3 --import x.csv
fails 1 'x.csv' "$dhelix" profile "${job[@]}" --import x.csv
finish
