/* Faults on purpose: a text from the environment, acted on in a communicator's hook or
 * in that of a step's instructions. */
#include "train/fault.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    dh_fault_kind kind;
    int n_numbers;
    bool calls_only;
} faults[] = {{"kill", DH_FAULT_KILL, 2, false},
              {"hang", DH_FAULT_HANG, 2, false},
              {"leave", DH_FAULT_LEAVE, 2, false},
              {"delay", DH_FAULT_DELAY, 3, false},
              {"drop", DH_FAULT_DROP, 2, true}};

/* ":1:20" -> numbers; the count of those read, or -1. The second may follow an i. */
static int read_numbers(const char *text, int64_t numbers[3], bool *at_instr)
{
    int n = 0;
    *at_instr = false;
    while (*text == ':' && n < 3) {
        char word[24];
        if (n == 1 && text[1] == 'i') {
            *at_instr = true;
            text++;
        }
        const size_t length = strcspn(text + 1, ":");
        if (length >= sizeof word) return -1;
        memcpy(word, text + 1, length);
        word[length] = '\0';
        if (!dh_parse_i64(word, &numbers[n++]) || numbers[n - 1] < 0) return -1;
        text += 1 + length;
    }
    return *text ? -1 : n;
}

static dh_status parse_one(dh_ctx *ctx, const char *text, dh_fault *fault)
{
    const size_t length = strcspn(text, ":");
    for (size_t i = 0; i < DH_COUNTOF(faults); i++) {
        int64_t numbers[3] = {0};
        bool at_instr;
        if (strlen(faults[i].name) != length || strncmp(faults[i].name, text, length) != 0)
            continue;
        if (read_numbers(text + length, numbers, &at_instr) != faults[i].n_numbers ||
            (at_instr && faults[i].calls_only))
            break;
        *fault = (dh_fault){.kind = faults[i].kind,
                            .rank = numbers[0],
                            .at = numbers[1],
                            .delay_ms = numbers[2],
                            .at_instr = at_instr};
        return DH_OK;
    }
    return dh_fail(ctx, DH_EINVAL,
                   "DHELIX_FAULT \"%.80s\": kill:RANK:AT, hang:RANK:AT, leave:RANK:AT, "
                   "delay:RANK:AT:MS and drop:RANK:CALL are possible, where AT is CALL, the number "
                   "of a communication call, or iINSTRUCTION",
                   text);
}

dh_status dh_fault_parse(dh_ctx *ctx, const char *text, int n_before, dh_fault *fault)
{
    char one[100];
    *fault = (dh_fault){.kind = DH_FAULT_NONE};
    for (; text && n_before > 0; n_before--) {
        text = strchr(text, ',');
        if (text) text++;
    }
    if (!text || !*text) return DH_OK;
    snprintf(one, sizeof one, "%.*s", (int)DH_MIN(strcspn(text, ","), sizeof one - 1), text);
    return parse_one(ctx, one, fault);
}

/* Until then, or until another rank has given up waiting. */
static void sleep_until(int64_t end_ns, dh_comm *comm)
{
    dh_ctx ctx = DH_CTX_INIT;
    while (dh_now_ns() < end_ns && comm && dh_comm_check(&ctx, comm) == DH_OK)
        dh_sleep_until_ns(DH_MIN(end_ns, dh_now_ns() + 5 * (int64_t)1000000));
}

static void act(const dh_fault *fault)
{
    if (fault->kind == DH_FAULT_LEAVE && fault->comm) dh_comm_detach(fault->comm);
    if (fault->kind == DH_FAULT_LEAVE) sleep_until(INT64_MAX, fault->comm);
    if (fault->kind == DH_FAULT_KILL) raise(SIGKILL);
    if (fault->kind == DH_FAULT_HANG) sleep_until(INT64_MAX, fault->comm);
    if (fault->kind == DH_FAULT_DELAY)
        sleep_until(dh_now_ns() + fault->delay_ms * 1000000, fault->comm);
}

dh_comm_action dh_fault_at_call(void *user, int rank, int64_t seq, dh_comm_kind kind)
{
    const dh_fault *fault = user;
    if (fault->at_instr || rank != fault->rank || seq != fault->at) return DH_COMM_PROCEED;
    dh_log(DH_LOG_WARN, "DHELIX_FAULT: rank %d, call %lld (%s)", rank, (long long)seq,
           dh_comm_kind_name(kind));
    act(fault);
    return fault->kind == DH_FAULT_DROP ? DH_COMM_DROP : DH_COMM_PROCEED;
}

dh_status dh_fault_at_instr(dh_ctx *ctx, void *user)
{
    dh_fault *fault = user;
    if (!fault->at_instr || atomic_fetch_add(&fault->n_instrs, 1) + 1 != fault->at) return DH_OK;
    dh_log(DH_LOG_WARN, "DHELIX_FAULT: rank %lld, instruction %lld", (long long)fault->rank,
           (long long)fault->at);
    act(fault);
    return fault->comm ? dh_comm_check(ctx, fault->comm) : DH_OK;
}
