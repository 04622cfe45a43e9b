# A program with device cuda, on a machine that may have no GPU: the device is listed, and a run on it
# says what the machine lacks. Of builds with -DDH_CUDA=ON, or AUTO where CUDA is.
. tests/cli/lib.sh "$1"
tiny_job "$tmp/job.yaml"

ok "$dhelix" list devices
check 'cuda is listed' grep -q '^cuda ' "$tmp/out"
if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    echo 'there is a GPU: that a machine has none cannot be tried'
else
    fails 1 'the machine has no GPU, or no driver for it' \
        "$dhelix" train "$tmp/job.yaml" --quiet --set device=cuda --set out="$tmp/run"
    check 'nothing is left of the run' test ! -e "$tmp/run/checkpoints"
fi
finish
