/* Marks the functions that the shared library exports. */
#ifndef DHELIX_EXPORT_H
#define DHELIX_EXPORT_H

/* A function for callers. The library is compiled with all others hidden. */
#define DH_API __attribute__((visibility("default")))

#endif
