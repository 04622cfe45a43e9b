/* Which job belongs to which tables: a row for the jobs of a table on one cluster. */
#include <string.h>

#include "validate/validate.h"

#define ZERO_BUBBLE "zero-bubble-1* zero-bubble-2* zero-bubble-6*"
#define DHELIX_A40 "dhelix-gpt-* dhelix-llama-8b dhelix-llama-25b dhelix-llama-39b"

static const dh_validation_job rows[] = {
    {"zero-bubble-times-*", "zero-bubble", NULL},
    {"zero-bubble-times-*", "zero-bubble-split", NULL},
    {ZERO_BUBBLE, "zero-bubble-throughput", "a100"},
    {ZERO_BUBBLE, "zero-bubble-memory", "a100"},
    {"megascale-175b", "megascale", "a100"},
    {"vtrain", "vtrain-node", "selene"},
    {"vtrain", "vtrain", "validation/clusters/a100-4hdr.yaml"},
    {"folding-*", "moe-folding", "h100"},
    {"zoo-qwen3-235b", "moe-zoo", "h100"},
    {"torchtitan-8b torchtitan-70b torchtitan-405b", "torchtitan", "h100-500w"},
    {"torchtitan-8b", "torchtitan", "h200"},
    {"torchtitan-8b torchtitan-70b-fsdp torchtitan-llama2-*", "torchtitan-fsdp", "a100"},
    {"torchtitan-405b-fsdp", "torchtitan-fsdp", "h100-500w"},
    {"mpt-*", "mpt", "a100"},
    {"mpt-760m mpt-1b mpt-3b mpt-7b mpt-13b mpt-30b mpt-70b", "mpt-h100", "h100"},
    {"nemo-gpt3-175b nemo-llama3* nemo-nemotron-15b nemo-nemotron-340b", "nemo-recipes", "h100"},
    {"nemo-gpt3-* nemo-llama* nemo-nemotron-8b nemo-nemotron-22b nemo-nemotron-340b", "nemo",
     "h100"},
    {"nemo-llama2-7b", "nemo-long", "h100"},
    {"mt-nlg-530b", "held-out", "selene"},
    {"nemotron-4-15b llama3.1-405b", "held-out", "h100"},
    {"korthikanti-*", "korthikanti-iteration", "selene"},
    {"korthikanti-*", "korthikanti-utilisation", "selene"},
    {"korthikanti-22b", "korthikanti-layer", "selene"},
    {"korthikanti-530b", "korthikanti-scaling", "selene"},
    {"korthikanti-*", "korthikanti-memory", "selene"},
    {"korthikanti-*", "korthikanti-activations", "selene"},
    {"sc21-*", "megatron-sc21", "selene"},
    {DHELIX_A40 " dhelix-phi-31b", "dhelix-shares", "a40"},
    {DHELIX_A40, "dhelix-throughput", "a40"},
    {DHELIX_A40, "dhelix-speedups", "a40"},
    {DHELIX_A40, "dhelix-context", "a40"},
    {DHELIX_A40, "dhelix-context-speedups", "a40"},
    {"dhelix-llama-66b", "dhelix-a800", "a800"},
    {"dhelix-llama-66b", "dhelix-a800-speedups", "a800"},
    {"dhelix-llama-39b", "dhelix-ablation", "a40"},
    {"dhelix-phi-31b", "dhelix-experts", "a40"},
    {DHELIX_A40, "dhelix-hidden", "a40"},
    {"dhelix-llama-66b", "dhelix-text-shares", "a800"},
    {"dhelix-llama-25b dhelix-llama-39b", "dhelix-text-shares", "a40"},
    {"dhelix-llama-39b", "dhelix-h100", "h100"},
    {"dhelix-llama-39b", "dhelix-h100-visible", "h100"},
    {"dhelix-llama-39b", "dhelix-largest", "a40"},
    {"dhelix-405b-volumes", "dhelix-volumes", "h100"},
    {"hotspa-32b", "hotspa", "a800"},
    {"survey-gpt-13b", "survey", "a100"},
    {"survey-gpt-13b", "survey", "h100"},
    {"survey-gpt-175b", "survey", "a100"},
    {"survey-gpt-175b", "survey", "a800"},
    {"survey-gpt-175b", "survey", "h800"},
    {"survey-gpt-175b", "survey", "validation/clusters/a100-pcie.yaml"},
    {"simumax-*", "simumax-dense", "b200"},
    {"simumax-*", "simumax-memory", "b200"},
};

const dh_validation_job *dh_validation_jobs(size_t *n)
{
    *n = DH_COUNTOF(rows);
    return rows;
}

/* "sc21-*" is all names that begin so. */
static bool is_word_of(const char *word, size_t n, const char *name)
{
    if (n > 0 && word[n - 1] == '*') return strncmp(word, name, n - 1) == 0;
    return strlen(name) == n && strncmp(word, name, n) == 0;
}

bool dh_validation_job_is(const dh_validation_job *row, const char *name)
{
    for (const char *at = row->names; *at; at += strspn(at, " ")) {
        const size_t n = strcspn(at, " ");
        if (is_word_of(at, n, name)) return true;
        at += n;
    }
    return false;
}
