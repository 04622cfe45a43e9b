/* Jobs in and out of other projects: what their command lines and files say, as a job file, and a
 * job's mesh, schedule, recomputation and overlap as their flags. The tables of flags are in
 * src/config (megatron.def, torchtitan.def, nemo.def). */
#ifndef DH_EXCHANGE_EXCHANGE_H
#define DH_EXCHANGE_EXCHANGE_H

#include "base/base.h"
#include "config/flags.h"
#include "dhelix/job.h"

/* ---- import ------------------------------------------------------------------------------------ */

typedef enum dh_fate {
    DH_FATE_EXPRESSED, /* in the job, or in the system that it is simulated as */
    DH_FATE_IDLE,      /* a step takes as long with it as without */
    DH_FATE_LOST,      /* no job is like it */
    DH_N_FATES
} dh_fate;

typedef struct dh_import_options {
    const char *system;         /* instead of the project's; NULL: that one */
    int64_t ranks;              /* 0: as the launcher's command says, or as few as the mesh takes */
    bool lenient;               /* unknown flags are listed as lost; else they are refused */
    const char *const *defines; /* [n_defines] NAME=VALUE of a script's variables */
    size_t n_defines;
    const char *const *set; /* [n_set] key=value of the job, over what is imported */
    size_t n_set;
} dh_import_options;

/* A flag that was given, or a default of the project that matters. */
typedef struct dh_given {
    const char *name;  /* as it was written */
    const char *value; /* NULL: none */
    const char *here;  /* "parallel.tp: 8"; NULL: nothing */
    const char *note;  /* the difference, or why it is left out; NULL: nothing to say */
    dh_fate fate;
} dh_given;

typedef struct dh_imported {
    dh_arena *arena;
    dh_given *given; /* in the order in which they were written */
    size_t n_given;
    const char **notes; /* decisions about ranks and conditions, a sentence each */
    size_t n_notes;
    const char *origin;
    char *job; /* the job file's text, which reads as a job */
} dh_imported;

/* in        what: a file's path, or for Megatron-LM the arguments themselves
 * out       set only on DH_OK; free with dh_imported_free
 * errors    DH_EFORMAT, DH_EINVAL: an unknown flag, a value that is missing, a job that is none;
 *           those of reading a file */
dh_status dh_import(dh_ctx *ctx, dh_project project, const char *what, const dh_import_options *how,
                    dh_imported *imported);
void dh_imported_free(dh_imported *imported);
/* The job file with the lists as its comments. */
void dh_imported_print(const dh_imported *imported, dh_str *out);

/* ---- export ------------------------------------------------------------------------------------ */

typedef struct dh_exported {
    dh_arena *arena;
    DH_VEC(const char *) lines; /* "--tensor-model-parallel-size 8"; of files "key = value" */
    DH_VEC(dh_given) missing;   /* settings that the project has no flag for: name, value, note */
    dh_str text;                /* arguments of a command line, or a file */
} dh_exported;

/* out       set only on DH_OK; free with dh_exported_free
 * errors    DH_ENOMEM */
dh_status dh_export(dh_ctx *ctx, dh_project project, const dh_job *job, dh_exported *exported);
void dh_exported_free(dh_exported *exported);

#endif
