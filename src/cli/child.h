/* Programs that this one runs. */
#ifndef DH_CLI_CHILD_H
#define DH_CLI_CHILD_H

#include <sys/types.h>

/* Runs a program that is looked for on PATH, in a process group of its own, with nothing on its
 * standard input and no signal blocked. It gets SIGTERM when the calling thread ends.
 * in        words: ended by NULL; out: a descriptor for its standard output, -1: the caller's
 * returns   0, or the errno why it cannot be run */
int dh_cli_spawn(const char *const *words, int out, pid_t *child);

#endif
