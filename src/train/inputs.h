/* Files that a job reads, compared with those that it writes: no input is overwritten. */
#ifndef DH_TRAIN_INPUTS_H
#define DH_TRAIN_INPUTS_H

#include "dhelix/job.h"

/* Whether writing `out`, a file or folder, changes what is read as `in`. Files are compared by device
 * and inode, not by name, so links do not hide them. The files of a run folder belong together:
 * reading or writing the folder reads or writes all of them.
 *
 * whole     all that lies in folder `out` is replaced, not only the files of a run */
bool dh_output_spoils(const char *out, const char *in, bool whole);
/* Refuses it. Either may be NULL: there is none.
 * errors    DH_EINVAL with both names */
dh_status dh_output_check(dh_ctx *ctx, const char *out, const char *in, bool whole);

/* Refuses a folder that holds files of a run, whoever reads them: others of the same names would
 * replace some of them. An absent folder is fine.
 * errors    DH_EINVAL names one */
dh_status dh_output_check_no_run(dh_ctx *ctx, const char *dir);

/* Every file and folder that a job reads, with the setting that names it; of patterns and folders of
 * texts the files, too. Stops at the first that is not DH_OK.
 * fn        path: for the time of the call */
typedef dh_status (*dh_input_fn)(dh_ctx *ctx, void *user, const char *setting, const char *path);
dh_status dh_job_each_input(dh_ctx *ctx, const dh_job *job, dh_input_fn fn, void *user);
/* The same of one entry of texts: a file, folder or pattern. */
dh_status dh_each_text(dh_ctx *ctx, const char *setting, const char *name, dh_input_fn fn,
                       void *user);

/* A run in the job's `out` spoils nothing that the job reads. Its own copies of tokenizer and
 * profile may be read again, unless it begins anew: then the folder and all in it is put aside.
 * errors    DH_EINVAL names the setting */
dh_status dh_run_check_inputs(dh_ctx *ctx, const dh_job *job, bool fresh);

#endif
