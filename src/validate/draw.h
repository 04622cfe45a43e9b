/* Published tables as pictures: what was predicted and what was published, side by side. */
#ifndef DH_VALIDATE_DRAW_H
#define DH_VALIDATE_DRAW_H

#include "validate/validate.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An SVG document in the form of the table (dh_validation_form), appended. Colours follow the
 * reader's light or dark setting. Running out of memory shows in out->failed. */
void dh_validation_draw(const dh_validation *validation, dh_str *out);

/* A page: begin, a part for each table (title, picture, rows with the commands that simulate
 * them), end. Everything is in the one file. */
void dh_validation_page_begin(dh_str *out);
void dh_validation_page_add(const dh_validation *validation, dh_str *out);
void dh_validation_page_end(dh_str *out);

#ifdef __cplusplus
}
#endif
#endif
