/* Inside src/exchange: a job as it is put together from flags. */
#ifndef DH_EXCHANGE_IMPORT_H
#define DH_EXCHANGE_IMPORT_H

#include "exchange/exchange.h"
#include "exchange/source.h"

/* A flag with its row. */
typedef struct im_flag {
    dh_given given;
    const char *name; /* under which rules look for it: NeMo's keys have Megatron-LM's */
    const dh_flag *row;
    const char *place;
    bool off; /* written, but false or null */
} im_flag;

typedef struct im_setting {
    const char *key, *value;
} im_setting;

typedef struct importer {
    dh_ctx *ctx;
    dh_arena *arena;
    dh_source source;
    const dh_import_options *how;
    DH_VEC(im_flag) flags;
    DH_VEC(im_setting) settings;
    const char *system;
    const char *preset; /* preset of the model, where the file names one; NULL: by sizes */
    dh_str traits;      /* "+reduced-last" */
    dh_status st;       /* status of the first rule that failed: later ones do nothing */
} importer;

/* The last one of a name that is not off; NULL: none. */
im_flag *im_find(importer *im, const char *name);
bool im_has(importer *im, const char *name);
/* Its value; fallback where it is not given. */
const char *im_text(importer *im, const char *name, const char *fallback);
int64_t im_int(importer *im, const char *name, int64_t fallback);
double im_real(importer *im, const char *name, double fallback);
bool im_is(importer *im, const char *name, const char *value);

/* A setting of the job, over what it was. */
void im_set(importer *im, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void im_unset(importer *im, const char *key);
/* NULL: not set */
const char *im_get(const importer *im, const char *key);
int64_t im_get_int(const importer *im, const char *key, int64_t fallback);
/* The model that --set names, a preset or a config.json; NULL: none */
const char *im_given_model(const importer *im);
/* Adds a trait of the system that is simulated. */
void im_trait(importer *im, const char *trait);
/* Sets the fate of a flag, if the flag is given. here: NULL leaves it as it is. */
void im_fate(importer *im, const char *name, dh_fate fate, const char *here, const char *note);
/* A default of the project that no flag says. */
void im_default(importer *im, const char *name, const char *value, dh_fate fate, const char *here,
                const char *note);
void im_note(importer *im, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void im_fail(importer *im, dh_status st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Ranks: as many as the launcher starts, or the fewest above that the mesh divides. */
void im_ranks(importer *im, int64_t unit);

/* The rules of each project, after every flag has the fate of its row. */
void im_megatron(importer *im);
void im_torchtitan(importer *im);
void im_nemo(importer *im);

#endif
