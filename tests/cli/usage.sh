# Exit codes, messages and help.
. tests/cli/lib.sh "$1"

fails 2 'a command is missing' "$dhelix"
fails 2 'did you mean sample?' "$dhelix" sampel
fails 2 'unknown command "zzzzzzzz"' "$dhelix" zzzzzzzz
fails 2 'did you mean --temperature?' "$dhelix" sample x --temprature 1
fails 2 'unknown option -z' "$dhelix" sample x -z
fails 2 '--tokens needs a value' "$dhelix" sample x --tokens
fails 2 'a whole number' "$dhelix" sample x --tokens many
fails 2 'a whole number' "$dhelix" sample x --tokens=-1
fails 2 'from 0 to 1' "$dhelix" sample x --top-p 1.5
fails 2 'one of f32, bf16' "$dhelix" sample x --dtype f16
fails 2 '--greedy takes no value' "$dhelix" sample x --greedy=1
fails 2 'an argument is missing' "$dhelix" sample
fails 2 'unexpected argument "b"' "$dhelix" sample a b
fails 2 'unknown option --set' "$dhelix" sample a --set b=c
fails 2 '--tokenizer SPEC is missing' "$dhelix" tokenize
fails 2 '--data FILE... is missing' "$dhelix" eval x
fails 2 'did you mean models?' "$dhelix" list model
fails 2 'did you mean train?' "$dhelix" help trian
fails 1 'nowhere.yaml' "$dhelix" train "$tmp/nowhere.yaml"
fails 1 'no file or folder' "$dhelix" sample "$tmp/nowhere"
fails 1 'did you mean "train.steps"?' "$dhelix" check examples/quickstart.yaml --set train.stepz=3
# Words of others, other kinds, other cases.
while read -r setting hint; do
    fails 1 "$hint" "$dhelix" check examples/quickstart.yaml --set "$setting"
done <<'EOF'
strategy=zb-v parallel.schedule=zb-v, with any strategy
parallel.schedule=interleaved did you mean "interleaved-1f1b"?
parallel.schedule=ZB-V did you mean "zb-v"?
schedule=gpipe did you mean "optimizer.schedule" or "parallel.schedule"?
train.bf16=true here: train.dtype: bf16
parallel.schedule=dhelix dhelix is a strategy, not a schedule: strategy=dhelix, which brings schedule dhelix-w
parallel.schedule=flux flux is a strategy, not a schedule: strategy=flux, with any schedule
parallel.schedule=ScheduleInterleaved1F1B did you mean "interleaved-1f1b"
parallel.schedule=ZBVZeroBubble did you mean "zb-v"
train.dtype=fp8 here: train.fp8: hybrid, with train.dtype: bf16
train.dtype=float16 here: bf16 (float16 is not trained)
optimizer.name=sgd the optimizer is AdamW
parallel.vpp=2 here: parallel.virtual_stages
etp=2 here: parallel.expert_tp
system=Megatron did you mean megatron-core
strategy=megatron-lm did you mean sequential, with system: megatron-core
model=meta-llama/Llama-3-8B models are not downloaded
model=meta-llama/Llama-3.1-70B-Instruct llama3-70b (the same shape)
model=meta-llama/Meta-Llama-3-70B-Instruct (dhelix list models): llama3-70b
model=Qwen/Qwen2.5-7B-Instruct (dhelix list models): qwen2.5-7b
model=openai-community/gpt2-xl (dhelix list models): gpt2-xl
data.train=nofile reading the characters of data.train: cannot open
EOF
fails 1 'did you mean h100' "$dhelix" simulate examples/quickstart.yaml --cluster H100
ok "$dhelix" help tp
says 'parallel.tp: '
ok "$dhelix" help vpp
says 'vpp: here parallel.virtual_stages'
says '--set parallel.virtual_stages=VALUE'
ok "$dhelix" help zb-v
says 'zb-v: a pipeline schedule'
says '--set parallel.schedule=zb-v'
ok "$dhelix" help dhelix
says 'dhelix: a strategy'
says 'dhelix: a system'
ok "$dhelix" help H100
says '--cluster h100'
ok "$dhelix" help ScheduleDualPipeV
says 'here parallel.schedule: dualpipev'
fails 2 'unknown command "nosuch"' "$dhelix" help nosuch
printf 'model: gpt2\ndata:\n\ttrain: x\n' >"$tmp/tab.yaml"
fails 1 'tab.yaml:3:1: a tab: lines are indented by blanks' "$dhelix" check "$tmp/tab.yaml"
printf '# \303\274ber\nmodel: @gpt2\n' >"$tmp/at.yaml"
fails 1 'at.yaml:2:8: @, ` or % begins a text here' "$dhelix" check "$tmp/at.yaml"
fails 1 'cannot write to standard output' sh -c "'$dhelix' list settings >/dev/full"

printf 'GGUF and so on, long enough to be read' >"$tmp/model.gguf"
fails 1 'GGUF is not read' "$dhelix" sample "$tmp/model.gguf"
fails 1 'GGUF is not read' "$dhelix" tokenize --tokenizer "$tmp/model.gguf" README.md

ok "$dhelix" --version
says 'dhelix '
ok "$dhelix" --help
cp "$tmp/out" "$tmp/overview"
for command in $(sed -n 's/^  \([a-z-]*\) .*/\1/p' "$tmp/overview"); do
    ok "$dhelix" "$command" --help
    says "usage: dhelix $command"
    says '--help'
    cp "$tmp/out" "$tmp/help"
    ok "$dhelix" help "$command"
    check "help $command is $command --help" cmp "$tmp/help" "$tmp/out"
done
check 'the overview names eight commands' test "$(grep -c '^  [a-z]' "$tmp/overview")" -ge 8
ok "$dhelix" help job
says 'train.steps'
says 'optimizer.lr'
ok "$dhelix" train --help
says 'dhelix help job'

finish
