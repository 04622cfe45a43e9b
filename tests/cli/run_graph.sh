# Programs written by hand on real ranks.
. tests/cli/lib.sh "$1"
programs=examples/programs
given="--inputs $programs/mlp_tp.safetensors"

ok "$dhelix" run-graph $programs/mlp_tp.graph --ranks 2 $given --out "$tmp/two.safetensors"
says 'the same on all'
says '5 operators on 2 ranks, verified'
check 'outputs are written' test -s "$tmp/two.safetensors"
ok "$dhelix" run-graph $programs/mlp_tp.graph --set parallel.tp=2 $given --json \
    --expect "$tmp/two.safetensors"
same "$(json difference)" 0.0 'a run and its repetition'
same "$(json ranks)" 2
ok "$dhelix" run-graph $programs/mlp_tp.graph --ranks 2 $given --set links.local.gbps=0.1 \
    --set device=staged --expect "$tmp/two.safetensors"
says 'same values'

# A value that passes, left as well: it is by rank.
ok "$dhelix" run-graph $programs/mlp_tp.graph --ranks 2 $given --keep part
says 'by rank'
fails 1 'off by' "$dhelix" run-graph $programs/mlp_tp.graph --ranks 2 $given \
    --set train.seed=99 --expect "$tmp/two.safetensors"
ok "$dhelix" run-graph $programs/mlp_tp.graph --ranks 2 $given --set train.seed=99 \
    --expect "$tmp/two.safetensors" --tolerance 100

# Rewritten, the same bits: CoCoNet's split, reorder and fuse.
for passes in split 'split, reorder, fuse' 'split, reorder'; do
    ok "$dhelix" run-graph $programs/mlp_tp.graph --ranks 2 $given --passes "$passes" \
        --expect "$tmp/two.safetensors"
    says 'same values'
done
says '6 operators on 2 ranks'
fails 1 'makes no sum any more' "$dhelix" run-graph $programs/mlp_tp.graph --ranks 2 $given \
    --passes 'split, reorder' --keep sum
sed 's/8 ffn, 6 width/8, 6 width/' $programs/mlp_tp.graph >"$tmp/unnamed.graph"
fails 1 'passes take it for the same on all' "$dhelix" run-graph "$tmp/unnamed.graph" --ranks 2 \
    $given --passes 'split, reorder'
fails 1 'no pass is called' "$dhelix" run-graph $programs/mlp_tp.graph --ranks 2 $given --passes x

# An optimizer, fused: parameters are the same, moments lie with the ranks of their rows.
adam="$programs/adam_dp.graph --ranks 2 --set parallel.dp=2 --set optimizer.grad_clip=0"
adam="$adam --inputs $programs/adam_dp.safetensors"
ok "$dhelix" run-graph $adam --out "$tmp/adam.safetensors"
ok "$dhelix" run-graph $adam --passes 'split, reorder, fuse(2, gather)' \
    --expect "$tmp/adam.safetensors"
says '9 operators on 2 ranks'
ok "$dhelix" run-graph $adam --passes 'split, reorder(sharded), fuse(2, gather)' \
    --expect "$tmp/adam.safetensors" --tolerance 10
says '5 operators on 2 ranks'
says 'the same on all  same values'
says 'by rank'

# Costs choose the passes. In the examples' few rows nothing is worth a call more; in many rows half
# of the work by rows is. Inputs are zeros: what is computed with them is tested elsewhere.
zeros() { # FILE NAME:DTYPE:SHAPE:BYTES...
    local file=$1 at=0 header='' t name dtype shape n
    shift
    for t; do
        IFS=: read -r name dtype shape n <<<"$t"
        header="$header${header:+,}\"$name\":{\"dtype\":\"$dtype\",\"shape\":[$shape],"
        header="$header\"data_offsets\":[$at,$((at + n))]}"
        at=$((at + n))
    done
    header="{$header}"
    # shellcheck disable=SC2059 # the length, little-endian
    {
        printf "\\$(printf %o $((${#header} & 255)))\\$(printf %o $((${#header} >> 8)))"
        printf '\0\0\0\0\0\0%s' "$header"
        head -c "$at" /dev/zero
    } >"$file"
}
ok "$dhelix" run-graph $programs/mlp_tp.graph --ranks 2 $given --passes auto \
    --expect "$tmp/two.safetensors"
says 'rewritten by no rewrite'
says 'same values'
ok "$dhelix" run-graph $adam --passes 'auto(sharded)' --expect "$tmp/adam.safetensors"
says 'rewritten by no rewrite'
sed 's/4 tokens/1024 tokens/; s/8 ffn/64 ffn/; s/6 width/256 width/' $programs/mlp_tp.graph \
    >"$tmp/long.graph"
zeros "$tmp/long.safetensors" x:F32:1024,256:1048576 w1:F32:128,256:131072 \
    w2:F32:256,128:131072 b2:F32:256:1024 pos:I32:1024:4096 sample:I64:1024:8192
long="$tmp/long.graph --ranks 2 --inputs $tmp/long.safetensors"
ok "$dhelix" run-graph $long --passes auto
says 'rewritten by split, reorder, fuse(parts=4'
says 'the same on all'
# Where the wire takes longer than all else, what hides a GEMM's rows behind it hides most; what is
# paced counts.
ok "$dhelix" run-graph $long --passes auto --json
us=$(awk '/"chosen"/ { getline; getline; print $2 }' "$tmp/out")
ok "$dhelix" run-graph $long --passes auto --json --set links.local.gbps=8
paced=$(awk '/"chosen"/ { getline; getline; print $2 }' "$tmp/out")
check 'estimates have the links as they are set' \
    awk -v a="$us" -v b="$paced" 'BEGIN { exit !(a > 0 && b > 1.5 * a) }'
# A tensor that is given by rank, and is not said to be, is not taken for the same on all.
sed 's/64 ffn, 256 width/64, 256 width/' "$tmp/long.graph" >"$tmp/unnamed.graph"
ok "$dhelix" run-graph "$tmp/unnamed.graph" --ranks 2 --inputs "$tmp/long.safetensors" --passes auto
says 'rewritten by part-wise'
sed 's/8, 4 width/2048, 64 width/; s/8 heads, 4 width/2048 heads, 64 width/' \
    $programs/adam_dp.graph >"$tmp/many.graph"
zeros "$tmp/many.safetensors" p:F32:2048,64:524288 m:F32:2048,64:524288 v:F32:2048,64:524288 \
    own:F32:4096,64:1048576 norm:F64:1,2:16
many="$tmp/many.graph --ranks 2 --set parallel.dp=2 --inputs $tmp/many.safetensors"
ok "$dhelix" run-graph $many --passes auto
says 'rewritten by split, reorder, fuse(parts='
ok "$dhelix" run-graph $many --passes 'auto(sharded)'
says 'rewritten by split, reorder(sharded), fuse(parts='
ok "$dhelix" run-graph $many --passes 'auto(sharded)' --cluster h100
says 'by cluster h100'
fails 1 'only with --passes auto' "$dhelix" run-graph $many --passes split --cluster h100
fails 1 '--passes auto(x)' "$dhelix" run-graph $many --passes 'auto(x)'

# What is wrong is named by line and operand.
edit() { # sed script
    sed "$1" $programs/mlp_tp.graph >"$tmp/edited.graph"
}
wrong() { # sed script, message
    edit "$1"
    fails 1 "$2" "$dhelix" run-graph "$tmp/edited.graph" --ranks 2 $given
}
wrong 's/8 ffn, 6 width/8 ffn, 5 width/' 'linear: operand w is w1 f32[8, 5]; it must be f32 [O, 6]'
grep -q 'edited.graph, line 22' "$tmp/err" || fail 'the line of an operand that does not fit'
wrong 's/{group=tp}//' 'all_reduce names no group'
wrong 's/{group=tp}/{group=dp}/' 'goes over group dp, which has one rank here'
wrong 's/ {site=mlp}//' 'needs a site'
wrong 's/%2:w2 *range/%2:w3 range/' "called 'w3', not 'w2'"
wrong 's/linear(%0:x/linaer(%0:x/' "did you mean 'linear'?"
wrong 's/f32\[8 ffn, 6 width\]/bf16[8 ffn, 6 width]/' 'operand w is w1 bf16'
wrong 's/slot=1$/slot=0/' 'have the same slot'
fails 1 'w1 (line 12' "$dhelix" run-graph $programs/mlp_tp.graph --ranks 4 $given
fails 1 'no file given' "$dhelix" run-graph $programs/mlp_tp.graph --ranks 2
fails 1 'which has one rank here' "$dhelix" run-graph $programs/mlp_tp.graph $given
fails 1 'no operator writes' "$dhelix" run-graph $programs/mlp_tp.graph --ranks 2 $given --keep x
fails 1 'KEY=VALUE is wanted' "$dhelix" run-graph $programs/mlp_tp.graph --set tp $given
fails 1 'nowhere.graph' "$dhelix" run-graph "$tmp/nowhere.graph"

# The graph of a job's layer, as check prints it, is a program too.
tiny_job "$tmp/job.yaml"
ok "$dhelix" check "$tmp/job.yaml" --print graph
awk '/^dhelix.graph/ { layer = $3 == "layer" && !seen; seen = seen || layer } layer' "$tmp/out" \
    >"$tmp/layer.graph"
fails 1 'reading input' "$dhelix" run-graph "$tmp/layer.graph" $given
finish
