# Ranks as processes against ranks as threads: the same bits, the same failures.
#   bash tests/train/ranks_mpi.sh DHELIX MPIRUN [OPTIONS OF MPIRUN...]
# from the repository root.
mpirun=("${@:2}")
. tests/cli/lib.sh "$1"
export OMP_NUM_THREADS=1
tiny_job "$tmp/job.yaml"
job=("$tmp/job.yaml" --quiet --set train.threads=1 --set train.micro_batch=1 --set train.steps=20
    --set model.n_layers=4)

threads() { # run folder, settings...
    local out=$1
    shift
    ok "$dhelix" train "${job[@]}" --set out="$out" "$@"
}

processes() { # ranks, run folder, settings...
    local ranks=$1 out=$2
    shift 2
    ok "${mpirun[@]}" -n "$ranks" "$dhelix" train "${job[@]}" --set out="$out" "$@"
}

same_runs() { # two run folders, their last step
    same "$(curve "$1" | cksum)" "$(curve "$2" | cksum)" "losses of $1 and $2"
    for file in model optimizer; do
        check "$file of $1 and $2" cmp "$1/checkpoints/step-$3/$file.safetensors" \
            "$2/checkpoints/step-$3/$file.safetensors"
    done
}

last_loss() { # run folder
    grep -oE '"loss":[^,]*' "$1/metrics.jsonl" | tail -1 | cut -d: -f2
}

draw_seed ranks_mpi

one_of() { # values...
    local values=("$@")
    echo "${values[RANDOM % $#]}"
}

random_mesh() {
    case $((RANDOM % 4)) in
        0) echo "2 dp=2 zero=$(one_of 0 1 2 3) bucket_mb=$(one_of 25 0.005)" ;;
        1) echo "4 dp=2 pp=2 schedule=$(one_of gpipe 1f1b zb-h1 zb-v v-half combined-1f1b stp)" ;;
        2) echo "4 tp=2 cp=2" ;;
        3) echo "4 $(one_of dp tp cp)=2 pp=2 bucket_mb=$(one_of 25 0.005)" ;;
    esac
}

# Reductions add in group order in either world. All meshes are in meshes_mpi.sh.
meshes=('4 dp=2 cp=2 zero=3 reshard_after_forward=2 bucket_mb=0.02 strategy=dhelix' '4 tp=2 pp=2 schedule=dhelix-w'
    '2 tp=2 strategy=part-wise(2,scatter)+dhelix' '4 dp=2 tp=2 zero=2 train.dtype=bf16 grad_dtype=compute bucket_mb=0.02')
if deep; then
    meshes+=('4 dp=2 tp=2 zero=1' '4 pp=4 optimizer.post_validation=true optimizer.grad_clip=1.5' '2 tp=2 strategy=intra-batch'
        '4 tp=4 strategy=flux model.n_heads=4' '2 tp=2 strategy=fuse(4)+sequential'
        '2 tp=2 sequence=false strategy=part-wise(4)+sequential'
        '4 tp=4 strategy=intra-batch-bidirectional model.n_heads=4'
        '4 dp=2 tp=2 zero=2 gradient_sync=every bucket_mb=0.02' '4 dp=2 pp=2 zero=3 reshard_after_forward=false'
        '4 tp=4 strategy=two-stage(narrow,2)+sequential model.n_heads=4 topology.nodes=2' "$(random_mesh)")
fi
both_worlds() { # steps, mesh: ranks and settings
    local mesh=$2 last ranks settings
    printf -v last %06d "$1"
    read -r ranks settings <<<"$mesh"
    set -- --set train.steps="$1"
    for word in $settings; do
        [[ $word == strategy=* || ${word%%=*} == *.* ]] || word=parallel.$word
        set -- "$@" --set "$word"
    done
    threads "$tmp/threads" "$@"
    processes "$ranks" "$tmp/processes" "$@"
    echo "  $mesh"
    same_runs "$tmp/threads" "$tmp/processes" "$last"
    rm -rf "$tmp/threads" "$tmp/processes"
}
for mesh in "${meshes[@]}"; do both_worlds 20 "$mesh"; done

# Every other way of hiding, two steps each: rows of strategies, two copies of the model, settings.
if deep; then
    for row in '2 tp=2 train.micro_batch=2 strategy=domino' '4 tp=4 model.n_heads=4 topology.nodes=2 strategy=centauri' \
        '2 tp=2 sequence=false strategy=coconet' '2 tp=2 strategy=wavelet+' '2 tp=2 strategy=dhelix-paper' \
        '2 tp=2 strategy=dhelix' '2 tp=2 strategy=dhelix-rings' '2 pp=2 strategy=dualpipe' \
        '2 pp=2 strategy=combined-1f1b' '2 tp=2 strategy=stp' '2 pp=2 schedule=wavelet strategy=round-robin' \
        '2 pp=2 schedule=bidirectional strategy=list' '2 pp=2 schedule=dualpipe zero=1 strategy=dualpipe' \
        '2 dp=2 zero=1 optimizer.fuse=4'; do
        both_worlds 2 "$row"
    done
    dense=("${job[@]}")
    sed 's/^model: .*/model: {family: llama, n_layers: 4, n_heads: 4, n_kv_heads: 2, width: 32, ffn_width: 48,\
        attention: linear, max_seq: 32}/' "$tmp/job.yaml" >"$tmp/linear.yaml"
    job=("$tmp/linear.yaml" "${job[@]:1}")
    both_worlds 2 '2 cp=2 cp_linear=lasp1'
    both_worlds 2 '2 cp=2 cp_linear=lasp2'
    job=("${dense[@]}")

    # Programs written by hand, as they are and rewritten: the bits of ranks as threads.
    programs=examples/programs
    for program in "mlp_tp --ranks 2" "adam_dp --ranks 2 --set parallel.dp=2 --set optimizer.grad_clip=0"; do
        read -r name settings <<<"$program"
        # shellcheck disable=SC2086 # settings are words
        set -- $programs/$name.graph $settings --inputs $programs/$name.safetensors
        ok "$dhelix" run-graph "$@" --out "$tmp/threads.safetensors"
        for passes in '' 'split, reorder, fuse'; do
            ok "${mpirun[@]}" -n 2 "$dhelix" run-graph "$@" --passes "$passes" --expect "$tmp/threads.safetensors"
            says 'same values'
            check 'one rank tells' test "$(grep -c 'operators on 2 ranks' "$tmp/out")" = 1
        done
    done
fi

# Experts over ranks: how many rows travel is data, and the same in either world.
sed 's/^model: .*/model: {family: mixtral, n_layers: 4, n_heads: 4, n_kv_heads: 2, width: 32, ffn_width: 48,\
    n_experts: 4, top_k: 2, max_seq: 32}/' "$tmp/job.yaml" >"$tmp/mixtral.yaml"
dense=("${job[@]}")
job=("$tmp/mixtral.yaml" "${job[@]:1}")
mixtral=(--set parallel.dp=2 --set parallel.ep=2)
experts=('2 moe.mode=dropless' '4 parallel.dp=4 parallel.ep=4 topology.nodes=2 moe.dispatch=node')
if deep; then experts+=('4 parallel.tp=2 parallel.zero=1' '2 moe.mode=capacity moe.capacity=1'); fi
for more in "${experts[@]}"; do
    read -r ranks settings <<<"$more"
    set -- "${mixtral[@]}"
    for word in $settings; do set -- "$@" --set "$word"; done
    threads "$tmp/threads" "$@"
    processes "$ranks" "$tmp/processes" "$@"
    same_runs "$tmp/threads" "$tmp/processes" 000020
    rm -rf "$tmp/threads" "$tmp/processes"
done
n_checks=$((n_checks + 1))
run "${mpirun[@]}" -n 2 "$dhelix" train "${job[@]}" --set out="$tmp/full" "${mixtral[@]}" \
    --set moe.capacity=1.01
[ "$status" -ne 0 ] || fail "a run with more rows than there is room for ended well"
check 'the message says what to raise' grep -qE 'layer [0-9].*rank [01].*raise moe.capacity to 1\.' "$tmp/err"
job=("${dense[@]}")

# Documents by length, each group over a mesh of its own: what moves between meshes does so beside
# passes, in groups of ranks of its own.
mkdir "$tmp/texts"
for ((i = 0; i < 150; i++)); do
    tail -c +$((1 + 40 * i)) examples/data/tinyshakespeare.txt |
        head -c $((2 + i * 7 % (i % 5 ? 7 : 31))) >"$tmp/texts/$i.txt" || true
done
by_length=(--set data.train="$tmp/texts" --set data.tokenizer=bytes --set data.val_fraction=0 --set eval.every=0
    --set data.packing=group --set train.batch=8 --set checkpoint.every=20)
switched=('parallel.dp=2 parallel.tp=2 parallel.zero=1 switch.groups=8,dp=4;16,tp=2,pp=2;32,dp=2,tp=2')
if deep; then switched+=('parallel.pp=2 parallel.dp=2 train.dtype=bf16 switch.groups=8,dp=4;16,cp=2,tp=2;32,tp=2,pp=2'); fi
for more in "${switched[@]}"; do
    set -- "${by_length[@]}"
    for word in $more; do set -- "$@" --set "$word"; done
    threads "$tmp/threads" "$@"
    processes 4 "$tmp/processes" "$@"
    echo "  $more"
    same_runs "$tmp/threads" "$tmp/processes" 000020
    check 'meshes were switched' grep -q '"switches":4' "$tmp/processes/metrics.jsonl"
    rm -rf "$tmp/threads" "$tmp/processes"
done

# Begun by threads, continued by processes over another mesh, finished by one rank.
threads "$tmp/whole"
half=(--set optimizer.decay_steps=20)
threads "$tmp/parts" "${half[@]}" --set train.steps=8 --set parallel.tp=2 --set parallel.dp=2
processes 2 "$tmp/parts" "${half[@]}" --set train.steps=14 --set parallel.pp=2
threads "$tmp/parts" "${half[@]}"
close "$(last_loss "$tmp/parts")" "$(last_loss "$tmp/whole")" 2e-5

# Processes measure each other and go by what they measured; the same bits.
export XDG_CACHE_HOME=$tmp/cache
ok "${mpirun[@]}" -n 2 "$dhelix" profile "${job[@]}" --set parallel.tp=2 --samples 3
n_checks=$((n_checks + 1))
run env DHELIX_LOG=info "${mpirun[@]}" -n 2 "$dhelix" train "$tmp/job.yaml" --set train.threads=1 \
    --set train.micro_batch=1 --set train.steps=20 --set model.n_layers=4 --set out="$tmp/processes" \
    --set parallel.tp=2 --set strategy=list
[ "$status" -eq 0 ] || fail "exit code $status of a run by a profile"
check 'it goes by the profile' grep -q "ordered by profile $XDG_CACHE_HOME" "$tmp/err"
threads "$tmp/threads" --set parallel.tp=2 --set strategy=list
same_runs "$tmp/threads" "$tmp/processes" 000020
rm -rf "$tmp/threads" "$tmp/processes"

# The launcher decides how many there are.
n_checks=$((n_checks + 1))
run "${mpirun[@]}" -n 2 "$dhelix" train "${job[@]}" --set out="$tmp/no" --set parallel.tp=4
[ "$status" -ne 0 ] || fail "2 processes for 4 ranks were accepted"
check 'the message says how many there are' grep -q '2 ranks' "$tmp/err"

# Nor may they have different jobs, or different data in a file of one name.
n_checks=$((n_checks + 1))
sed 's/lr: 3.0e-3/lr: 1.0e-3/' "$tmp/job.yaml" >"$tmp/other.yaml"
two=(--quiet --set train.threads=1 --set train.steps=2 --set parallel.dp=2 --set out="$tmp/unlike")
run "${mpirun[@]}" -n 1 "$dhelix" train "$tmp/job.yaml" "${two[@]}" : \
    -n 1 "$dhelix" train "$tmp/other.yaml" "${two[@]}"
[ "$status" -ne 0 ] || fail "ranks with different jobs trained"
check 'rank and setting are named' \
    grep -q 'started alike: rank 1 has optimizer.lr 0.001, rank 0 has 0.003$' "$tmp/err"
n_checks=$((n_checks + 1))
for rank in 0 1; do
    mkdir "$tmp/node$rank"
    tr $rank x <README.md | cat - README.md README.md README.md README.md >"$tmp/node$rank/text"
done
run "${mpirun[@]}" -n 1 "$dhelix" train "$tmp/job.yaml" "${two[@]}" --set data.train="$tmp/node0/text" \
    --set data.tokenizer=bytes : -n 1 "$dhelix" train "$tmp/job.yaml" "${two[@]}" \
    --set data.train="$tmp/node1/text" --set data.tokenizer=bytes
[ "$status" -ne 0 ] || fail "ranks with different data trained"
check 'rank and data are named' \
    grep -qE 'started alike: rank 1 has training data ([0-9]+) tokens, hash .*, rank 0 has \1 tokens' "$tmp/err"
check 'nothing was trained' test ! -e "$tmp/unlike"

# Nor other weights to begin with, or another checkpoint, in files of one path, which leads through the
# folder that each rank works in. Of the same content in other files they train.
cat >"$tmp/begun.yaml" <<EOF
model: $PWD/tests/data/weights/tiny-qwen2
data: {train: $PWD/examples/data/tinyshakespeare.txt, tokenizer: bytes, val_fraction: 0}
train: {steps: 1, batch: 2, seq_len: 16, threads: 1}
parallel: {dp: 2}
eval: {every: 0}
EOF
for rank in 0 1; do
    cp -r tests/data/weights/tiny-qwen2 "$tmp/node$rank/base"
    cp -r tests/data/weights/lora-qwen2 "$tmp/node$rank/adapter"
done
apart() { # settings...
    local words=("$(realpath "$dhelix")" train "$tmp/begun.yaml" --quiet) word
    for word in "$@"; do words+=(--set "$word"); done
    n_checks=$((n_checks + 1))
    run "${mpirun[@]}" -n 1 -wdir "$tmp/node0" "${words[@]}" : -n 1 -wdir "$tmp/node1" "${words[@]}"
}
unlike() { # what differs, how it is told, settings...
    apart "${@:3}"
    [ "$status" -ne 0 ] || fail "ranks with another $1 trained"
    check "rank and setting are named: $1" \
        grep -qE "started alike: rank 1 has $2.* hash [0-9a-f]{32}, rank 0 has .*hash [0-9a-f]{32}" "$tmp/err"
}
change() { # file of rank 1
    printf '\1' | dd of="$tmp/node1/$1" bs=1 seek=9000 conv=notrunc status=none
}
here=/proc/self/cwd
full=(train.init_from=$here/base)
beside=("${full[@]}" lora.init_from=$here/adapter lora.rank=4 lora.alpha=8 lora.targets=all-linear)
apart "${full[@]}" out="$tmp/begun-full"
[ "$status" -eq 0 ] || fail "exit code $status of ranks with the same weights in two files"
apart "${beside[@]}" out="$tmp/begun-beside"
[ "$status" -eq 0 ] || fail "exit code $status of ranks with the same adapters in two files"
change adapter/adapter_model.safetensors
unlike adapter lora.init_from "${beside[@]}" out="$tmp/begun-no"
change base/model.safetensors
unlike file train.init_from "${full[@]}" out="$tmp/begun-no"
unlike 'file beside adapters' train.init_from "${beside[@]}" out="$tmp/begun-no"
check 'nothing was trained' test -z "$(ls -d "$tmp"/begun-no/checkpoints/* 2>/dev/null)"
for rank in 0 1; do
    ok "$dhelix" train "$tmp/begun.yaml" --quiet --set out="$tmp/node$rank/run" --set train.init_from="$tmp/node$rank/base"
done
unlike checkpoint 'in its checkpoint model.safetensors [0-9]* bytes' train.steps=2 out=$here/run

# A process is killed, at a call and at a random instruction: all end, the launcher names it,
# and fewer go on from the last checkpoint.
often=(--set checkpoint.every=5 --set parallel.timeout_s=20)
instruction=$((2700 + RANDOM % 4200)) # of steps 7 to 20 of four ranks, whatever is shared out
shared_out=$(one_of 0 2 3)
faults=("kill:$((RANDOM % 4)):i$instruction")
if deep; then faults+=(kill:1:900); fi
for fault in "${faults[@]}"; do
    rank=${fault#*:}
    n_checks=$((n_checks + 1))
    DHELIX_FAULT=$fault run "${mpirun[@]}" -n 4 "$dhelix" train "${job[@]}" "${often[@]}" \
        --set out="$tmp/killed" --set parallel.dp=2 --set parallel.tp=2 --set parallel.zero="$shared_out"
    [ "$status" -ne 0 ] || fail "a run without one of its ranks ended well: $fault, ZeRO-$shared_out"
    check "the launcher names the rank of $fault" grep -q "rank ${rank%%:*} .*signal 9" "$tmp/err" "$tmp/out"
    check 'a checkpoint is there' ls -d "$tmp/killed/checkpoints"/step-*
    processes 2 "$tmp/killed" "${often[@]}" --set parallel.tp=2
    close "$(last_loss "$tmp/killed")" "$(last_loss "$tmp/whole")" 2e-5
    check 'nothing half-written is left' test -z "$(find "$tmp/killed/checkpoints" -name '.tmp*')"
    rm -rf "$tmp/killed"
done

# As threads: the process is gone, its checkpoint is not.
n_checks=$((n_checks + 1))
DHELIX_FAULT=kill:1:900 run "$dhelix" train "${job[@]}" "${often[@]}" --set out="$tmp/gone" \
    --set parallel.dp=2 --set parallel.tp=2
[ "$status" -eq 137 ] || fail "exit code $status, want 137"
threads "$tmp/gone" "${often[@]}" --set parallel.pp=2
close "$(last_loss "$tmp/gone")" "$(last_loss "$tmp/whole")" 2e-5

# A silent process, late at a call or stopped in the middle of computing: the others say
# which one, and what they waited for.
n_checks=$((n_checks + 1))
DHELIX_FAULT=delay:1:600:90000 run "${mpirun[@]}" -n 2 "$dhelix" train "${job[@]}" \
    --set out="$tmp/silent" --set parallel.tp=2 --set parallel.timeout_s=8
[ "$status" -ne 0 ] || fail "a run with a late rank ended well"
check "the late rank is named" \
    grep -qE 'rank 0 waited 8 s in .*(group tp|group control).*did not come: rank 1 \(' "$tmp/err"
rm -rf "$tmp/silent"

# Where not all wait for it themselves, whoever speaks: each message's chain ends at the rank that
# stands still, and has the ranks between.
culprit=$((RANDOM % 4))
fault=hang:$culprit:i$((1 + RANDOM % 6700)) # of the 6720 of the first stage, which has the fewest
n_checks=$((n_checks + 1))
DHELIX_FAULT=$fault run "${mpirun[@]}" -n 4 "$dhelix" train "${job[@]}" \
    --set out="$tmp/silent" --set parallel.cp=2 --set parallel.pp=2 --set parallel.timeout_s=8
[ "$status" -ne 0 ] || fail "a run with a silent rank ended well: $fault"
told=$(grep -oE 'rank [0-3] waited 8 s in .*' "$tmp/err" | sed -E 's/(; rank [0-3] was waiting in .*)$//' | sort -u)
echo "  $fault: ${told//$'\n'/; }"
check "somebody tells: $fault" test -n "$told"
chain="; did not come:( rank [0-3] \(waiting in [^,;]+\), for want of)* rank $culprit \([^,;]*\)$"
check "every chain ends at the silent rank: $fault" test -z "$(grep -vE "$chain" <<<"$told")"
rm -rf "$tmp/silent"

# Weights that diverge on one rank: its message, not its echo.
n_checks=$((n_checks + 1))
run "${mpirun[@]}" -n 2 "$dhelix" train "${job[@]}" --set out="$tmp/diverged" --set parallel.pp=2 \
    --set optimizer.lr=1000 --set optimizer.grad_clip=0 --set optimizer.warmup_steps=0
[ "$status" -ne 0 ] || fail "a diverged run ended well"
check 'the cause is there' grep -qE 'training step [0-9]+: .*(non-finite|finite)' "$tmp/err"

# One rank's disk is full, where a small file system can be mounted.
mkdir "$tmp/disk"
if mount -t tmpfs -o size=900k tmpfs "$tmp/disk" 2>/dev/null; then
    cleanup() { umount "$tmp/disk"; rm -rf "$tmp"; }
    n_checks=$((n_checks + 1))
    full=(--set checkpoint.every=2 --set checkpoint.keep=0 --set out="$tmp/disk/run" --set parallel.tp=2)
    run "${mpirun[@]}" -n 2 "$dhelix" train "${job[@]}" "${full[@]}"
    [ "$status" -ne 0 ] || fail "a run without room ended well"
    check 'the message names the checkpoint' grep -q 'checkpoint of step .*No space left' "$tmp/err"
    check 'no half checkpoint is left' test -z "$(find "$tmp/disk/run/checkpoints" -name '.tmp*')"
    mount -o remount,size=64m "$tmp/disk"
    processes 2 "$tmp/disk/run" "${full[@]}"
    close "$(last_loss "$tmp/disk/run")" "$(last_loss "$tmp/whole")" 2e-5
else
    echo 'skipped: disk full (mounting a small tmpfs needs root)'
fi
finish
