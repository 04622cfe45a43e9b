/* Shared inside src/config: the table of job settings, and a setting's value on
 * its way from text to the job. */
#ifndef DH_CONFIG_SETTINGS_H
#define DH_CONFIG_SETTINGS_H

#include <string.h>

#include "dhelix/job.h"

typedef enum dh_setting_type {
    DH_SET_INT,
    DH_SET_FLOAT,
    DH_SET_BOOL,
    DH_SET_ENUM,         /* stored as the index of the name */
    DH_SET_ENUM_OR_INT,  /* int64_t: a number, or the index of the name with a minus */
    DH_SET_STRING,       /* char *, "" when not given */
    DH_SET_FLOW,         /* char *: text, or a mapping, kept as its text {key: value, ...} */
    DH_SET_CHARS,        /* char[64] */
    DH_SET_NAMES,        /* list of names, kept as the text "a,b" in char[64] */
    DH_SET_INTS,         /* list of whole numbers, kept as the text "3,4,4,3" */
    DH_SET_SPLIT,        /* the same, with entries of dh_layer_split: "-1,*,-1" */
    DH_SET_REALS,        /* list of positive numbers, kept as the text "1.5,2" */
    DH_SET_FACTORS,      /* list of positive numbers, a dh_rope_factors */
    DH_SET_ENTRIES,      /* char *: texts, kept as one with "; " between */
    DH_SET_PATH,         /* char *, NULL when not given */
    DH_SET_PATHS,        /* char ** and its count */
    DH_SET_NAME_OR_PATH, /* char *; a path when it has a slash or a dot */
    DH_SET_MODEL,        /* where the model comes from; resolved by job_model.c */
    DH_N_SETTING_TYPES
} dh_setting_type;

/* Families a model setting applies to. */
enum {
    DH_FOR_GPT2 = 1 << DH_FAMILY_GPT2,
    DH_FOR_LLAMA = 1 << DH_FAMILY_LLAMA,
    DH_FOR_MIXTRAL = 1 << DH_FAMILY_MIXTRAL,
    DH_FOR_MISTRAL = 1 << DH_FAMILY_MISTRAL,
    DH_FOR_QWEN2 = 1 << DH_FAMILY_QWEN2,
    DH_FOR_PHI3 = 1 << DH_FAMILY_PHI3,
    DH_FOR_QWEN3 = 1 << DH_FAMILY_QWEN3,
    DH_FOR_SMOLLM3 = 1 << DH_FAMILY_SMOLLM3,
    DH_FOR_QWEN3_MOE = 1 << DH_FAMILY_QWEN3_MOE,
    DH_FOR_GEMMA2 = 1 << DH_FAMILY_GEMMA2,
    DH_FOR_GEMMA3 = 1 << DH_FAMILY_GEMMA3,
    DH_FOR_DEEPSEEK3 = 1 << DH_FAMILY_DEEPSEEK3,
    DH_FOR_GPT_OSS = 1 << DH_FAMILY_GPT_OSS,
    DH_FOR_LLAMA4 = 1 << DH_FAMILY_LLAMA4,
    DH_FOR_PHIMOE = 1 << DH_FAMILY_PHIMOE,
    DH_FOR_OLMO3 = 1 << DH_FAMILY_OLMO3
};

typedef struct dh_setting {
    const char *key; /* "section.key" */
    dh_setting_type type;
    size_t offset;            /* in dh_job */
    const char *fallback;     /* text of the default; NULL: the model's own value */
    double min, max;          /* INT, FLOAT and ENUM_OR_INT */
    const char *const *names; /* ENUM and ENUM_OR_INT: NULL-terminated */
    const char *unit;         /* NULL: a plain number */
    const char *automatic;    /* meaning of "auto" (stored as 0); NULL: not allowed */
    const char *zero;         /* meaning of 0, where it is special */
    const char *aliases;      /* other last parts of the key, blank-separated */
    unsigned families;        /* model settings: DH_FOR_*, 0: all */
    size_t offset_n;          /* PATHS: of the count */
    bool own;                 /* ranks on different machines may have it differently */
    const char *help;
} dh_setting;

static inline bool dh_setting_has_names(const dh_setting *s)
{
    return s->type == DH_SET_ENUM || s->type == DH_SET_ENUM_OR_INT;
}

/* "tp" of "parallel.tp" */
static inline const char *dh_setting_last_part(const char *key)
{
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}
static inline bool dh_setting_same_section(const char *a, const char *b)
{
    const size_t n = (size_t)(dh_setting_last_part(a) - a);
    return n == (size_t)(dh_setting_last_part(b) - b) && memcmp(a, b, n) == 0;
}

/* In order of printing: all keys of a section follow each other. */
const dh_setting *dh_settings(size_t *n);
/* By key or alias; NULL when unknown. */
const dh_setting *dh_setting_find(const char *key);
/* Is some setting's key "key.something"? */
bool dh_setting_is_section(const char *key);
/* "did you mean ...?" or what would be valid, for an unknown key. */
void dh_setting_suggest(const char *key, dh_str *out);
bool dh_setting_has_alias(const dh_setting *setting, const char *word);
/* The name here of a value of a setting, for people who give another project's word:
 * "parallel.schedule", "ScheduleZBVZeroBubble". NULL: unknown. */
const char *dh_foreign_value(const char *setting, const char *word);
/* The same for a word of any kind. setting: whose value it is; NULL: it is a setting itself. */
const char *dh_foreign_word(const char *word, const char **setting);
/* The preset that a name of Hugging Face's hub, without its owner, stands for: the longest that it
 * contains, else the nearest. NULL: none. */
const char *dh_foreign_model(const char *name, const char *const *presets, size_t n);
/* Does it belong to dh_job.model? */
bool dh_setting_in_model(const dh_setting *setting);
/* "whole number, 1 or more", for help and errors. */
void dh_setting_describe(const dh_setting *setting, dh_str *out);

/* A value as read; strings live in the job's arena. */
typedef struct dh_assignment {
    const dh_setting *setting;
    const char *where; /* "job.yaml:3:7: train.batch" or "--set train.batch=x" */
    bool from_file;
    bool is_list;
    char **items; /* n texts; one unless is_list */
    size_t n;
} dh_assignment;

typedef DH_VEC(dh_assignment) dh_assignments;

/* Checks a value and puts it into the job. Relative paths are taken from base_dir (NULL: left
 * alone).
 * errors    DH_EINVAL: begins with `where`; DH_ENOMEM */
dh_status dh_setting_store(dh_ctx *ctx, dh_job *job, const dh_assignment *value,
                           const char *base_dir);
/* Numbers as settings have them: no inf, nan, hexadecimal or blanks; false: the text is none. */
bool dh_setting_real(const char *text, double *value);
bool dh_setting_whole(const char *text, int64_t *value);
/* "where: 'text' is not right; it must be ..." */
dh_status dh_setting_reject(dh_ctx *ctx, const dh_assignment *value, const char *text,
                            const char *extra);
/* job_lists.c: INTS, SPLIT and REALS. */
dh_status dh_setting_store_numbers(dh_ctx *ctx, dh_job *job, const dh_assignment *value,
                                   const char *base_dir);
/* DH_SET_FACTORS: a list [1, 1.5], or the text "1,1.5", which is how it is written.
 * errors    DH_EINVAL an entry is no number above 0; more entries than a head has pairs of channels */
dh_status dh_setting_store_factors(dh_ctx *ctx, dh_job *job, const dh_assignment *value,
                                   const char *base_dir);
void dh_setting_write_factors(const dh_job *job, const dh_setting *setting, dh_str *out);
/* The shortest decimal form that reads back exactly. */
void dh_setting_write_real(double value, dh_str *out);
dh_status dh_setting_store_default(dh_ctx *ctx, dh_job *job, const dh_setting *setting);
/* The value in the job, as YAML. */
void dh_setting_print(const dh_job *job, const dh_setting *setting, dh_str *out);
/* The value in the job, as an override has it: texts without quotes. */
void dh_setting_text(const dh_job *job, const dh_setting *setting, dh_str *out);
/* base_dir/path, or path when it is absolute or base_dir is NULL or "". */
char *dh_job_join_path(dh_job *job, const char *base_dir, const char *path);
/* Make every relative path of the job start at dir. */
dh_status dh_job_anchor_paths(dh_ctx *ctx, dh_job *job, const char *dir);

/* Makes every path of the job start at dir, except paths that share no folder with it. All of them
 * are absolute before. */
dh_status dh_job_relate_paths(dh_ctx *ctx, dh_job *job, const char *dir);
/* A path from a folder, both absolute: "../data/x.txt". NULL: out of memory */
char *dh_job_path_from(dh_arena *arena, const char *dir, const char *path);

/* job_print.c: opens the sections of `key` that differ from those of the key before; returns the
 * depth of its last part. */
int dh_job_open_sections(const char *key, const char *before, dh_str *out);
/* Whether a printed job has the setting. */
bool dh_job_is_printed(const dh_job *job, const dh_setting *setting);
/* job_changes.c: the text of a job file that reads as the job. It has the settings that are neither
 * defaults nor derived nor of the model's source. Paths start at the file's folder.
 * in        file: to be written, in a folder that exists
 * out       text: caller frees
 * errors    DH_EIO, DH_ENOMEM; those of the model's source */
dh_status dh_job_print_changes(dh_ctx *ctx, const dh_job *job, const char *file, char **text);

/* job_read.c: text to assignments, appended to the list. */
dh_status dh_job_read_yaml(dh_ctx *ctx, dh_job *job, const char *text, size_t n_bytes,
                           const char *file_name, dh_assignments *list);
dh_status dh_job_read_override(dh_ctx *ctx, dh_job *job, const char *key_value,
                               dh_assignments *list);

/* job_model.c: the model from its assignments. */
dh_status dh_job_resolve_model(dh_ctx *ctx, dh_job *job, const dh_assignments *list,
                               const char *file_name, const char *base_dir);
/* The model that the job has, changed by the model's settings among the assignments. */
dh_status dh_job_change_model(dh_ctx *ctx, dh_job *job, const dh_assignments *list);

/* The part of dh_job_check that is about ranks alone: degrees, ranks, nodes, whatever the model.
 * errors    DH_EINVAL */
dh_status dh_job_derive_ranks(dh_ctx *ctx, dh_job *job);
/* Where dh_job_set changed a field: it is not derived, and others may have to be derived anew. */
void dh_job_is_given(dh_job *job, const void *field);

#endif
