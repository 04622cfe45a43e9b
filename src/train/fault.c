/* Faults on purpose: a text from the environment, acted on in a communicator's hook. */
#include "train/fault.h"

#include <signal.h>
#include <string.h>

static const struct {
    const char *name;
    dh_fault_kind kind;
    int n_numbers;
} faults[] = {{"kill", DH_FAULT_KILL, 2}, {"delay", DH_FAULT_DELAY, 3}, {"drop", DH_FAULT_DROP, 2}};

/* ":1:20" -> numbers; the count of those read, or -1. */
static int read_numbers(const char *text, int64_t numbers[3])
{
    int n = 0;
    while (*text == ':' && n < 3) {
        char word[24];
        const size_t length = strcspn(text + 1, ":");
        if (length >= sizeof word) return -1;
        memcpy(word, text + 1, length);
        word[length] = '\0';
        if (!dh_parse_i64(word, &numbers[n++]) || numbers[n - 1] < 0) return -1;
        text += 1 + length;
    }
    return *text ? -1 : n;
}

dh_status dh_fault_parse(dh_ctx *ctx, const char *text, dh_fault *fault)
{
    *fault = (dh_fault){.kind = DH_FAULT_NONE};
    if (!text || !*text) return DH_OK;
    const size_t length = strcspn(text, ":");
    for (size_t i = 0; i < DH_COUNTOF(faults); i++) {
        int64_t numbers[3] = {0};
        if (strlen(faults[i].name) != length || strncmp(faults[i].name, text, length) != 0)
            continue;
        if (read_numbers(text + length, numbers) != faults[i].n_numbers) break;
        *fault = (dh_fault){faults[i].kind, numbers[0], numbers[1], numbers[2]};
        return DH_OK;
    }
    return dh_fail(ctx, DH_EINVAL,
                   "DHELIX_FAULT \"%.80s\": kill:RANK:CALL, delay:RANK:CALL:MS and "
                   "drop:RANK:CALL are possible",
                   text);
}

dh_comm_action dh_fault_hook(void *user, int rank, int64_t seq, dh_comm_kind kind)
{
    const dh_fault *fault = user;
    if (rank != fault->rank || seq != fault->seq) return DH_COMM_PROCEED;
    dh_log(DH_LOG_WARN, "DHELIX_FAULT: rank %d, call %lld (%s)", rank, (long long)seq,
           dh_comm_kind_name(kind));
    if (fault->kind == DH_FAULT_DROP) return DH_COMM_DROP;
    if (fault->kind == DH_FAULT_KILL) raise(SIGKILL);
    dh_sleep_until_ns(dh_now_ns() + fault->delay_ms * 1000000);
    return DH_COMM_PROCEED;
}
