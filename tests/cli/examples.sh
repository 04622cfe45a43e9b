# Every job of examples/ trains as it is, on the ranks it asks for, and what it says holds.
. tests/cli/lib.sh "$1"
export XDG_CACHE_HOME=$tmp/cache

train() { # example, folder, settings...
    local job=$1 out=$tmp/$2
    shift 2
    set -- "$@" out="$out" train.steps=3 checkpoint.every=0 eval.every=0
    ok "$dhelix" train "$job" "${@/#/--set=}"
    check "$job: three steps" test "$(grep -c '"loss"' "$out/metrics.jsonl")" -eq 3
}

for job in examples/*.yaml; do
    case $job in
    examples/llama3_70b.yaml) ;; # to be simulated: 128 devices
    examples/hide.yaml) train "$job" hide train.batch=8 ;;
    *) train "$job" "$(basename "$job" .yaml)" ;;
    esac
done

# Those of DHelix: two strands leave the weights of one.
weights=checkpoints/step-000003/model.safetensors
names=(tp2 cp2 linear_cp2 tp2cp2 tp2pp2)
if sanitized; then names=(tp2pp2); fi
for name in "${names[@]}"; do
    check "$name is an example of DHelix" grep -q '^strategy: dhelix' "examples/$name.yaml"
    train "examples/$name.yaml" one strategy=sequential
    check "$name: the same bits as one strand" cmp "$tmp/$name/$weights" "$tmp/one/$weights"
    rm -r "$tmp/one"
done
finish
