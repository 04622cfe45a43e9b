/* The one entry point of a fuzz target, called by libFuzzer or by replay.c. */
#ifndef DH_FUZZ_H
#define DH_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

/* Must return 0, free all it took, and touch data[0, size) only. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
