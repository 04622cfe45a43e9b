/* Settings as other projects write them: a table of flags for each, one row a flag. Import, export,
 * suggestions and `dhelix help` read the same rows. */
#ifndef DH_CONFIG_FLAGS_H
#define DH_CONFIG_FLAGS_H

#include <stdbool.h>
#include <stddef.h>

typedef enum dh_project {
    DH_PROJECT_MEGATRON,   /* Megatron-LM's command line */
    DH_PROJECT_TORCHTITAN, /* torchtitan's TOML files: keys with their tables, as training.steps */
    DH_PROJECT_NEMO,       /* NeMo's YAML: keys that Megatron-LM does not have */
    DH_N_PROJECTS
} dh_project;

typedef enum dh_flag_kind {
    DH_FLAG_FLAG,  /* stands alone; in a file: true */
    DH_FLAG_VALUE, /* takes one value */
    DH_FLAG_LIST   /* takes values up to the next flag */
} dh_flag_kind;

typedef enum dh_flag_effect {
    DH_FLAG_SET,   /* `here` is the setting that gets the value */
    DH_FLAG_WITH,  /* read together with others; `here` says what for */
    DH_FLAG_NONE,  /* changes nothing here; note: why */
    DH_FLAG_CANNOT /* nothing here is like it; note: why */
} dh_flag_effect;

typedef struct dh_flag {
    const char *section; /* "parallelism", "overlap", "memory", "model", ... */
    const char *name;    /* "--seq-length", "training.seq_len" */
    dh_flag_kind kind;
    const char *effect; /* name of a dh_flag_effect; "as", "not": `here` is a flag of Megatron-LM */
    const char *here;   /* "parallel.tp", or "parallel.zero: 1"; NULL: nothing */
    const char *note;   /* the translation, or why there is none; NULL: nothing to say */
    const char *neutral; /* values that change nothing, blank-separated; NULL: none */
} dh_flag;

/* "megatron" */
extern const char *const dh_project_names[]; /* NULL-terminated, by dh_project */
const dh_flag *dh_flags(dh_project project, size_t *n);
/* By its name; "_" counts as "-". NULL: unknown */
const dh_flag *dh_flag_find(dh_project project, const char *name);
/* The known name nearest to an unknown one; NULL: none is near */
const char *dh_flag_near(dh_project project, const char *name);
/* A flag of any project by its name or the last part of it, dashes in front or not:
 * "tensor_parallel_degree". project: whose it is. NULL: unknown */
const dh_flag *dh_flag_by_word(const char *word, dh_project *project);
dh_flag_effect dh_flag_effect_of(const dh_flag *flag);

#endif
