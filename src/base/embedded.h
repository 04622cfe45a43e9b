/* Text files that are part of the library (dh_embed in cmake/DhelixBuild.cmake). */
#ifndef DH_EMBEDDED_H
#define DH_EMBEDDED_H

#include <stddef.h>

typedef struct dh_embedded {
    const char *name; /* name of the file, without folder and extension */
    const unsigned char *text;
    size_t n_bytes;
} dh_embedded;

#endif
